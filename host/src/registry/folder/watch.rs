//! Keeps a registry as the folders are: a file that was added, replaced, renamed or removed counts once it has
//! been quiet for a moment.

use std::{sync::Arc, time::Duration};

use notify::{RecursiveMode, Watcher as _};
use tokio::{sync::Notify, time::sleep};
use tokio_util::task::AbortOnDropHandle;

use super::{Folders, Loaded, Serving, list};
use crate::registry::{Registry, RegistryError, live::LiveRegistry};

/// Nothing may change for so long before files are read: whoever copies one is done by then, or is noticed.
const QUIET: Duration = Duration::from_millis(200);
/// Looked anyway this often, since a system can fail to tell of a change (network shares, watches used up).
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// A folder that never comes to rest is read all the same.
const MAX_UNREST: Duration = Duration::from_secs(60);

/// Watches until it is dropped.
pub struct Watching(#[expect(dead_code, reason = "it is held")] AbortOnDropHandle<()>);

/// From now on, what changes in the folders changes what `live` offers. `before` is what was last read of them;
/// `build` makes a registry of what is there, and hears what is to be told of it.
pub fn watch(
    folders: Folders,
    before: &Loaded,
    live: LiveRegistry,
    build: impl Fn(Loaded) -> Result<Registry, RegistryError> + Send + 'static,
) -> Watching {
    let serving = before.serving();
    Watching(AbortOnDropHandle::new(tokio::spawn(keep(
        folders, serving, live, build,
    ))))
}

async fn keep(
    mut folders: Folders,
    mut serving: Serving,
    live: LiveRegistry,
    build: impl Fn(Loaded) -> Result<Registry, RegistryError> + Send,
) {
    let touched = Arc::new(Notify::new());
    // Held for as long as this runs; without it the look every now and then is what is left.
    let _watcher = watcher(&folders, Arc::clone(&touched));
    let mut seen = None;
    loop {
        let listing = list(&folders.folders).await;
        if seen.as_ref() != Some(&listing) {
            seen = Some(at_rest(&folders, listing).await);
            let loaded = folders.read().await;
            let now = loaded.serving();
            if now != serving {
                serving = now;
                match build(loaded) {
                    Ok(registry) => live.replace(Arc::new(registry)),
                    Err(error) => {
                        tracing::warn!("the tools stay as they are: {error}");
                    }
                }
            }
        }
        tokio::select! {
            () = touched.notified() => {}
            () = sleep(LOOK_EVERY) => {}
        }
    }
}

/// The listing once nothing has changed for a while.
async fn at_rest(folders: &Folders, mut listing: super::Listing) -> super::Listing {
    let waiting = async {
        loop {
            sleep(QUIET).await;
            let again = list(&folders.folders).await;
            if again == listing {
                break;
            }
            listing = again;
        }
    };
    if tokio::time::timeout(MAX_UNREST, waiting).await.is_err() {
        tracing::warn!("the plugins folder does not come to rest; it is read as it is");
    }
    listing
}

fn watcher(folders: &Folders, touched: Arc<Notify>) -> Option<notify::RecommendedWatcher> {
    let told = move |_| touched.notify_one();
    let mut watcher = notify::recommended_watcher(told)
        .inspect_err(|error| {
            tracing::info!("changes of plugins are looked for, since they are not told: {error}");
        })
        .ok()?;
    for folder in &folders.folders {
        if let Err(error) = watcher.watch(folder, RecursiveMode::NonRecursive) {
            tracing::info!("changes in `{}` are looked for: {error}", folder.display());
        }
    }
    Some(watcher)
}
