//! From a file's bytes to a component that can be called: read, compiled or taken from the cache, linked, and
//! asked for its tools.

use std::{sync::Arc, time::Instant};

use tokio::sync::{OnceCell, OwnedSemaphorePermit};

use super::{
    Component, ComponentParts, GuestListener, MetadataError, Sandbox, SandboxError, Slot,
    bindings::agentloop::tool::types,
    cache::{self, Cache},
    compiler::{self, Compiler},
    egress::CallEgress,
    ending,
    engine::{GuestEngine, Profile},
    executor::within,
    inspect::{Beside, FileKind, inspect_kept},
    kinds::{Kind, Offer},
    limits::{
        COMPILE_WAIT, MAX_COMPONENT_BYTES, MEMORIES_PER_CALL, METADATA_ATTEMPTS, METADATA_BYTES,
        METADATA_MEMORY_BYTES, METADATA_TIMEOUT,
    },
    metadata::{self, Definitions},
    output::GuestOutput,
    shape,
    store::{self, StoreLimits},
    wasi,
};
use crate::{
    capability::{Limits, Reach},
    event::LogLevel,
    ids::{ComponentDigest, PluginName},
};

/// Why a file is not a component that this host can run. Each variant's text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error(
        "it has {bytes} bytes, and the limit is {MAX_COMPONENT_BYTES}; build it with `--release` and `strip = true`"
    )]
    TooLarge { bytes: usize },
    #[error(
        "it is not WebAssembly but {looks_like}; a plugin is a component, built for `wasm32-wasip2`"
    )]
    NotWasm { looks_like: &'static str },
    #[error(
        "it is a core WebAssembly module, and a plugin is a component: build it with \
         `cargo build --release --target wasm32-wasip2`, or wrap it with `wasm-tools component new`"
    )]
    CoreModule,
    #[error(
        "it is cut off or damaged at byte {at} of {size}: {why}; copy it again or build it again"
    )]
    Damaged { at: usize, size: usize, why: String },
    #[error(
        "it is a program (it exports `wasi:cli/run`); to make it a tool, write a file of its name with the ending \
         `.toml` beside it, with `description`, `argv` and `input_schema`"
    )]
    Command,
    #[error("{0}")]
    Manifest(MetadataError),
    #[error(
        "it is an ACT component (it exports `act:tools/tool-provider`), whose functions are asynchronous: WASI 0.3, \
         which this host does not run yet; an ACT host that serves it over MCP can be used as `[mcp.NAME]`, \
         outside the sandbox"
    )]
    Act,
    #[error(
        "it is a component without tools: a plugin exports `agentloop:tool/tools` or functions of its own, and this \
         one exports {exports}"
    )]
    NoTools { exports: String },
    #[error("it was built against `agentloop:tool` {found}, and this host speaks 0.1: {side}")]
    OtherVersion { found: String, side: &'static str },
    #[error("it needs imports that this host does not have, {imports}: {advice}")]
    UnknownImports {
        imports: String,
        advice: &'static str,
    },
    #[error(
        "it has more than {limit} {what}, which is more than this host compiles; build it with optimisations, or split it"
    )]
    TooComplex { what: &'static str, limit: usize },
    #[error("it does not compile: {why}")]
    Compile { why: String },
    /// The process that compiles did not do so. Either the component is made to exhaust it, or it can't be started.
    #[error(
        "the compiler's process gave nothing: {why}; `sandbox.compile_apart = false` compiles without it and without its limits"
    )]
    Compiler { why: String },
    #[error("compiling it takes longer than {} s", COMPILE_WAIT.as_secs())]
    CompileTimeout,
    #[error(
        "it does not fit this host's interfaces: {why}; build it again with the agentloop-sdk of this host"
    )]
    Link { why: String },
    #[error("its custom section `agentloop-tools` can't be used: {0}")]
    Section(MetadataError),
    #[error("its functions can't be called: {0}")]
    Functions(MetadataError),
    #[error("what its function `list` gave can't be used: {0}")]
    List(MetadataError),
    #[error("its function `list` does not end within {} ms", METADATA_TIMEOUT.as_millis())]
    ListTimeout,
    #[error("its function `list` {why}")]
    ListFailed { why: String },
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// A fault of ours.
    #[error("loading it failed inside the host: {why}")]
    Internal { why: String },
}

/// A component for one engine.
#[derive(Clone)]
pub(super) struct Linked {
    pub(super) guest: Arc<GuestEngine>,
    pub(super) kind: Kind,
    /// How many of the pool's memories a call takes beyond one.
    pub(super) extra_memories: u32,
}

impl Sandbox {
    /// Checks, compiles (or takes from the cache) and links a component, and reads its tools' definitions.
    pub async fn load(&self, wasm: Arc<[u8]>) -> Result<Component, LoadError> {
        self.load_with(wasm, None).await
    }

    /// As [`Sandbox::load`], with what stands beside the file.
    pub async fn load_with(
        &self,
        wasm: Arc<[u8]>,
        beside: Option<Beside>,
    ) -> Result<Component, LoadError> {
        if wasm.len() > MAX_COMPONENT_BYTES {
            return Err(LoadError::TooLarge { bytes: wasm.len() });
        }
        let inspection = {
            let wasm = wasm.clone();
            let beside = beside.clone();
            let cache = self.parts.cache.clone();
            self.blocking(move || inspect_kept(&wasm, beside.as_ref(), cache.as_deref()))
                .await?
        };
        inspection.check()?;
        let wasm_digest = inspection.digest;
        let offer = inspection
            .offer
            .ok_or_else(|| internal("what it offers is not known"))?;
        let plain = self
            .link(
                self.parts.plain.clone(),
                wasm_digest,
                wasm.clone(),
                offer.clone(),
            )
            .await?;
        let definitions = match inspection.metadata {
            Some(definitions) => definitions.map_err(LoadError::Section)?,
            None => self.list(&plain).await?,
        };
        // What a program does as a tool is in its manifest as well, and whoever agreed to one agreed to both.
        let digest = match (&inspection.file, beside) {
            (FileKind::Command, Some(beside)) => {
                ComponentDigest::of(format!("{wasm_digest}\n{}", beside.manifest).as_bytes())
            }
            _ => wasm_digest,
        };
        Ok(Component {
            parts: Arc::new(ComponentParts {
                digest,
                wasm_digest,
                definitions,
                plain,
                metered: OnceCell::new(),
                offer,
                wasm,
            }),
        })
    }

    pub(super) async fn linked(
        &self,
        component: &Component,
        limits: &Limits,
    ) -> Result<Linked, LoadError> {
        let parts = &component.parts;
        if !Arc::ptr_eq(&parts.plain.guest, &self.parts.plain) {
            return Err(internal("the component was loaded by another sandbox"));
        }
        if limits.fuel.is_none() {
            return Ok(parts.plain.clone());
        }
        parts
            .metered
            .get_or_try_init(|| async {
                let guest = self.metered_engine().await?;
                self.link(
                    guest,
                    parts.wasm_digest,
                    parts.wasm.clone(),
                    parts.offer.clone(),
                )
                .await
            })
            .await
            .cloned()
    }

    async fn metered_engine(&self) -> Result<Arc<GuestEngine>, LoadError> {
        let slots = self.parts.pool.then_some(self.parts.max_live_calls);
        self.parts
            .metered
            .get_or_try_init(|| async { Ok(Arc::new(GuestEngine::new(Profile::Metered, slots)?)) })
            .await
            .cloned()
    }

    async fn link(
        &self,
        guest: Arc<GuestEngine>,
        digest: ComponentDigest,
        wasm: Arc<[u8]>,
        offer: Offer,
    ) -> Result<Linked, LoadError> {
        let turn = self
            .parts
            .compilers
            .clone()
            .acquire_owned()
            .await
            .map_err(internal)?;
        let compiling = async {
            let found = {
                let (guest, cache) = (guest.clone(), self.parts.cache.clone());
                self.blocking(move || cache.and_then(|cache| cache.get(&guest, &digest)))
                    .await?
            };
            let component = match found {
                Some(component) => component,
                None => self.compile(guest.clone(), digest, wasm, turn).await?,
            };
            self.blocking(move || linked(guest, &component, &offer))
                .await?
        };
        tokio::time::timeout(COMPILE_WAIT, compiling)
            .await
            .map_err(|_| LoadError::CompileTimeout)?
    }

    async fn compile(
        &self,
        guest: Arc<GuestEngine>,
        digest: ComponentDigest,
        wasm: Arc<[u8]>,
        turn: OwnedSemaphorePermit,
    ) -> Result<wasmtime::component::Component, LoadError> {
        {
            let wasm = wasm.clone();
            self.blocking(move || shape::check(&wasm)).await??;
        }
        let cache = self.parts.cache.clone();
        match self.parts.compiler.clone() {
            Compiler::InProcess => {
                self.blocking(move || {
                    // Held by the compilation itself, which goes on when nobody waits for it any more.
                    let _turn = turn;
                    compiled(&guest, cache.as_deref(), &digest, &wasm)
                })
                .await?
            }
            Compiler::Apart(program) => {
                let profile = guest.profile;
                tracing::debug!("compiling {digest} in a process of its own");
                let child = async move { compiler::apart(program, profile, &wasm).await };
                let code = self.parts.executor.spawn(Box::pin(child)).await;
                let code = code.map_err(internal)??;
                drop(turn);
                self.blocking(move || taken(&guest, cache.as_deref(), &digest, &code))
                    .await?
            }
        }
    }

    /// Asks the component itself, with nothing granted. On a machine that is busy compiling, a list that takes
    /// microseconds can be late by the clock: it is asked again before it counts as one that does not end.
    async fn list(&self, linked: &Linked) -> Result<Definitions, LoadError> {
        for _ in 1..METADATA_ATTEMPTS {
            match self.list_once(linked).await {
                Err(LoadError::ListTimeout) => {}
                ended => return ended,
            }
        }
        self.list_once(linked).await
    }

    async fn list_once(&self, linked: &Linked) -> Result<Definitions, LoadError> {
        let slot = (self.slot().await, self.extra_memories(linked).await?);
        let plugin = PluginName::of_file_stem("");
        let egress = self
            .parts
            .egress
            .for_call(Reach::NOTHING, &plugin, None, None);
        let listing = list(linked.clone(), egress, slot);
        let listed = self.parts.executor.spawn(Box::pin(listing)).await;
        metadata::from_list(listed.map_err(internal)??).map_err(LoadError::List)
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, LoadError> {
        self.parts
            .executor
            .runtime()
            .spawn_blocking(work)
            .await
            .map_err(internal)
    }
}

/// One closed run of `list`.
async fn list(
    linked: Linked,
    egress: CallEgress,
    _slot: (Slot, Option<OwnedSemaphorePermit>),
) -> Result<Vec<types::ToolDefinition>, LoadError> {
    struct Deaf;
    impl GuestListener for Deaf {
        fn logged(&self, level: LogLevel, text: String) {
            tracing::debug!(?level, "a component's `list` says: {text}");
        }
        fn progressed(&self, _: f64, _: Option<f64>, _: Option<String>) {}
    }
    let _ticking = linked.guest.ticker.ticking();
    let deadline = Some(Instant::now() + METADATA_TIMEOUT);
    let output = GuestOutput::new(Arc::new(Deaf), None);
    let store_limits = StoreLimits {
        deadline,
        memory_bytes: METADATA_MEMORY_BYTES,
        output_bytes: METADATA_BYTES,
        fuel: None,
    };
    let mut store = store::new(
        &linked.guest,
        wasi::closed(&output),
        egress,
        output.clone(),
        store_limits,
    )
    .map_err(internal)?;
    match within(deadline, linked.kind.list(&mut store)).await {
        None => Err(LoadError::ListTimeout),
        Some(Ok(list)) => Ok(list),
        Some(Err(e)) if ending::is_interrupt(&e) => Err(LoadError::ListTimeout),
        Some(Err(e)) => Err(LoadError::ListFailed {
            why: if store.data().memory.refused() {
                format!("needs more than {METADATA_MEMORY_BYTES} bytes of memory")
            } else {
                format!("failed: {}", ending::trap_text(&e, &output.last_words()))
            },
        }),
    }
}

pub(super) fn internal(why: impl std::fmt::Display) -> LoadError {
    LoadError::Internal {
        why: why.to_string(),
    }
}

fn compiled(
    guest: &GuestEngine,
    cache: Option<&Cache>,
    digest: &ComponentDigest,
    wasm: &[u8],
) -> Result<wasmtime::component::Component, LoadError> {
    let component =
        wasmtime::component::Component::from_binary(&guest.engine, wasm).map_err(|e| {
            LoadError::Compile {
                why: crate::harmless::shown(&format!("{e:#}"), 1000, false),
            }
        })?;
    if let Some(cache) = cache {
        match component.serialize() {
            Ok(code) => cache.put(guest, digest, &code),
            Err(e) => tracing::warn!("can't keep the compiled code of {digest}: {e:#}"),
        }
    }
    Ok(component)
}

/// Through the cache where there is one, so that it is mapped rather than copied.
fn taken(
    guest: &GuestEngine,
    cache: Option<&Cache>,
    digest: &ComponentDigest,
    code: &[u8],
) -> Result<wasmtime::component::Component, LoadError> {
    let kept = cache.and_then(|cache| {
        cache.put(guest, digest, code);
        cache.get(guest, digest)
    });
    match kept {
        Some(component) => Ok(component),
        None => cache::adopt(guest, code).map_err(|e| LoadError::Compiler {
            why: format!("what it made does not fit: {e:#}"),
        }),
    }
}

fn linked(
    guest: Arc<GuestEngine>,
    component: &wasmtime::component::Component,
    offer: &Offer,
) -> Result<Linked, LoadError> {
    let memories = component
        .resources_required()
        .map_or(1, |needs| needs.num_memories);
    if memories as usize > MEMORIES_PER_CALL {
        return Err(LoadError::Link {
            why: format!("it has {memories} memories, and the limit is {MEMORIES_PER_CALL}"),
        });
    }
    let kind = guest
        .linker
        .instantiate_pre(component)
        .and_then(|pre| Kind::link(pre, offer))
        .map_err(|e| LoadError::Link {
            why: crate::harmless::shown(&format!("{e:#}"), 1000, false),
        })?;
    Ok(Linked {
        guest,
        kind,
        extra_memories: memories.saturating_sub(1),
    })
}
