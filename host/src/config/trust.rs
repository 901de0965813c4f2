//! Which project files count in full. A project file may come with a cloned repository, and must not open the
//! machine to whoever wrote it: what it grants or loosens counts only while a person trusts this very content.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use sha2::{Digest as _, Sha256};
use toml_edit::{ArrayOfTables, DocumentMut, Item, Table, value};

use super::{
    node::MAX_FILE_BYTES,
    permissions::{AppendError, InvalidRule, Rule, with_allow_rule, with_grants, without_grants},
    write_atomically,
};
use crate::ids::PluginName;

pub use super::permissions::GrantLines;

/// A project file as it was read, or the place where one could be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectFile {
    /// In its canonical folder.
    pub path: PathBuf,
    /// 64 hexadecimal digits; of nothing, when there is no file.
    pub sha256: String,
}

impl ProjectFile {
    pub(super) fn new(path: PathBuf, content: &[u8]) -> Self {
        Self {
            path,
            sha256: sha256(content),
        }
    }
}

/// The list of trusted project files, in the user's state folder.
#[derive(Debug, Clone)]
pub struct TrustStore {
    path: PathBuf,
}

/// Why trust could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    #[error("cannot read `{}`", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("`{}` is not a list of trusted files; delete it, and trust the projects again", path.display())]
    Broken { path: PathBuf },
    #[error("cannot write `{}`", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("`{}` cannot be trusted, since its path is not Unicode text; rename the folder", path.display())]
    PathNotText { path: PathBuf },
    #[error("`{}` has changed since it was read; look at it again", path.display())]
    Changed { path: PathBuf },
    #[error("`{}` is not trusted, so a rule in it would not count; trust it first", path.display())]
    NotTrusted { path: PathBuf },
    #[error(transparent)]
    Append(#[from] AppendError),
}

impl From<InvalidRule> for TrustError {
    fn from(error: InvalidRule) -> Self {
        Self::Append(error.into())
    }
}

impl TrustStore {
    pub fn new(state_dir: &Path) -> Self {
        Self {
            path: state_dir.join("trusted.toml"),
        }
    }

    pub fn is_trusted(&self, project: &ProjectFile) -> Result<bool, TrustError> {
        let document = self.read()?;
        let Some(path) = project.path.to_str() else {
            return Ok(false);
        };
        Ok(entries(&document)
            .any(|entry| is_text(entry, "file", path) && is_text(entry, "sha256", &project.sha256)))
    }

    /// Trusts this content of this file, and no other content of it. `project` is what the person was shown.
    pub fn trust(&self, project: &ProjectFile) -> Result<(), TrustError> {
        let path = (project.path.to_str()).ok_or_else(|| TrustError::PathNotText {
            path: project.path.clone(),
        })?;
        let mut document = self.read()?;
        let list = document
            .entry("project")
            .or_insert_with(|| Item::ArrayOfTables(ArrayOfTables::new()))
            .as_array_of_tables_mut()
            .ok_or_else(|| TrustError::Broken {
                path: self.path.clone(),
            })?;
        list.retain(|entry| !is_text(entry, "file", path));
        let mut entry = Table::new();
        entry["file"] = value(path);
        entry["sha256"] = value(project.sha256.as_str());
        list.push(entry);
        let write = || {
            if let Some(folder) = self.path.parent() {
                fs::create_dir_all(folder)?;
            }
            write_atomically(&self.path, document.to_string().as_bytes())
        };
        write().map_err(|source| TrustError::Write {
            path: self.path.clone(),
            source,
        })
    }

    /// Adds grants to a trusted project file, under the conditions of [`append_allow`](Self::append_allow).
    pub fn add_grants(
        &self,
        project: &mut ProjectFile,
        plugin: &PluginName,
        lines: &GrantLines,
    ) -> Result<(), TrustError> {
        self.edit(project, |path, text| with_grants(path, text, plugin, lines))
    }

    /// Takes all grants of a plugin out of a trusted project file. False: there were none.
    pub fn remove_grants(
        &self,
        project: &mut ProjectFile,
        plugin: &PluginName,
    ) -> Result<bool, TrustError> {
        let before = project.sha256.clone();
        self.edit(project, |path, text| without_grants(path, text, plugin))?;
        Ok(before != project.sha256)
    }

    /// Undoes an edit: `before` is what was there.
    pub fn put_back(
        &self,
        project: &mut ProjectFile,
        before: Option<&str>,
    ) -> Result<(), TrustError> {
        let path = project.path.clone();
        let done = match before {
            Some(text) => write_atomically(&path, text.as_bytes()),
            None => fs::remove_file(&path),
        };
        done.map_err(|source| TrustError::Write {
            path: path.clone(),
            source,
        })?;
        *project = ProjectFile::new(path, before.unwrap_or_default().as_bytes());
        match before {
            Some(_) => self.trust(project),
            None => Ok(()),
        }
    }

    /// Adds an allow rule to a trusted project file, and keeps trusting it: a person's "always". Where there is
    /// no project file one is made. Fails, with the file as it was, when the file is not trusted, since the
    /// rule would not count, or is no longer what was read.
    ///
    /// An ask rule that speaks of the call still comes first, in later runs.
    pub fn append_allow(&self, project: &mut ProjectFile, rule: &str) -> Result<(), TrustError> {
        let rule = Rule::parse(rule)?;
        self.edit(project, |path, text| with_allow_rule(path, text, &rule))
    }

    fn edit(
        &self,
        project: &mut ProjectFile,
        edit: impl FnOnce(&Path, &str) -> Result<String, AppendError>,
    ) -> Result<(), TrustError> {
        let path = project.path.clone();
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(source) => return Err(TrustError::Read { path, source }),
        };
        if sha256(text.as_bytes()) != project.sha256 {
            return Err(TrustError::Changed { path });
        }
        // trust would also open the folder's own plugins
        let has_nothing_to_distrust =
            text.is_empty() && !path.with_file_name(super::PLUGINS_DIR).exists();
        if !has_nothing_to_distrust && !self.is_trusted(project)? {
            return Err(TrustError::NotTrusted { path });
        }
        let edited = edit(&path, &text)?;
        if edited == text {
            return Ok(());
        }
        let text = edited;
        write_atomically(&path, text.as_bytes()).map_err(|source| TrustError::Write {
            path: path.clone(),
            source,
        })?;
        *project = ProjectFile::new(path, text.as_bytes());
        self.trust(project)
    }

    fn read(&self) -> Result<DocumentMut, TrustError> {
        let path = || self.path.clone();
        let text = match fs::metadata(&self.path) {
            Ok(metadata) if metadata.len() > MAX_FILE_BYTES as u64 => {
                return Err(TrustError::Broken { path: path() });
            }
            Ok(_) => fs::read_to_string(&self.path),
            Err(error) => Err(error),
        };
        match text {
            Ok(text) => text
                .parse()
                .map_err(|_| TrustError::Broken { path: path() }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(DocumentMut::new()),
            Err(source) => Err(TrustError::Read {
                path: path(),
                source,
            }),
        }
    }
}

fn entries(document: &DocumentMut) -> impl Iterator<Item = &Table> {
    document
        .get("project")
        .and_then(Item::as_array_of_tables)
        .into_iter()
        .flatten()
}

fn is_text(entry: &Table, key: &str, text: &str) -> bool {
    entry.get(key).and_then(Item::as_str) == Some(text)
}

fn sha256(content: &[u8]) -> String {
    Sha256::digest(content)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
