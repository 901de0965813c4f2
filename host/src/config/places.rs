//! Where the files of this user are.

use std::path::PathBuf;

use etcetera::BaseStrategy as _;

/// The user's folders for this program: XDG's, with the values of `XDG_*` where they are set, and Windows' own
/// there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    pub home: PathBuf,
    /// Holds `config.toml`.
    pub config_dir: PathBuf,
    /// Holds `plugins`.
    pub data_dir: PathBuf,
    /// Holds `trusted.toml` and the runs.
    pub state_dir: PathBuf,
    /// Holds compiled code; safe to delete.
    pub cache_dir: PathBuf,
}

/// The user has no home folder.
#[derive(Debug, thiserror::Error)]
#[error("cannot find the home folder of this user; set `HOME`")]
pub struct NoHome(#[source] etcetera::HomeDirError);

const FOLDER: &str = "agentloop";

impl Places {
    /// Reads the environment of the process.
    pub fn of_this_user() -> Result<Self, NoHome> {
        let base = etcetera::choose_base_strategy().map_err(NoHome)?;
        Ok(Self {
            home: base.home_dir().to_owned(),
            config_dir: base.config_dir().join(FOLDER),
            data_dir: base.data_dir().join(FOLDER),
            state_dir: base
                .state_dir()
                .unwrap_or_else(|| base.data_dir())
                .join(FOLDER),
            cache_dir: base.cache_dir().join(FOLDER),
        })
    }

    /// All of them in one folder; for tests and portable installations.
    pub fn inside(folder: impl Into<PathBuf>) -> Self {
        let home = folder.into();
        Self {
            config_dir: home.join("config"),
            data_dir: home.join("data"),
            state_dir: home.join("state"),
            cache_dir: home.join("cache"),
            home,
        }
    }

    pub fn config_file(&self) -> PathBuf {
        self.config_dir.join("config.toml")
    }

    /// Plugins that every project of this user sees.
    pub fn plugins_dir(&self) -> PathBuf {
        self.data_dir.join("plugins")
    }

    /// Runs, and the questions they ask.
    pub fn runs_file(&self) -> PathBuf {
        self.state_dir.join("runs.db")
    }

    pub fn compiled_code_dir(&self) -> PathBuf {
        self.cache_dir.join("cwasm")
    }
}
