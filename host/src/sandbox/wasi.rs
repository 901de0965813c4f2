//! WASI for one call: nothing, and then exactly what its reach says.
//!
//! | interface | what a guest gets |
//! |---|---|
//! | files | the granted folders at their guest paths, read-only unless granted for writing; wasmtime-wasi opens everything below them without leaving them, through links included |
//! | environment | the granted variables, by name |
//! | arguments, working directory, standard input | none |
//! | standard output and error | lines for the operator, see [`super::output`] |
//! | clocks, randomness | yes, at most [`RANDOM_BYTES`] of it at once |
//! | sockets, name look-up | none |
//! | `wasi:http` | through [`super::egress`] |
//! | exit | ends the call as a trap does |

use wasmtime_wasi::{FsPerms, WasiCtx, WasiCtxBuilder};

use super::{
    limits::RANDOM_BYTES,
    output::{GuestOutput, GuestStream, Stream},
};
use crate::capability::{Access, EnvironmentGrant, FolderGrant};

/// A granted folder that this machine does not open.
#[derive(Debug, thiserror::Error)]
#[error("can't open the folder `{}`, which is granted as `{guest_path}`: {why}", host_path.display())]
pub(super) struct FolderError {
    host_path: std::path::PathBuf,
    pub(super) guest_path: String,
    why: String,
}

pub(super) fn closed(output: &GuestOutput) -> WasiCtx {
    base(&[], output).build()
}

pub(super) fn without_folders(environment: &[EnvironmentGrant], output: &GuestOutput) -> WasiCtx {
    base(environment, output).build()
}

/// Opens the folders: may block.
pub(super) fn with_folders(
    folders: &[FolderGrant],
    environment: &[EnvironmentGrant],
    output: &GuestOutput,
) -> Result<WasiCtx, FolderError> {
    let mut wasi = base(environment, output);
    for folder in folders {
        let perms = match folder.access {
            Access::Read => FsPerms::ReadOnly,
            Access::Write => FsPerms::ReadWrite,
        };
        wasi.preopened_dir(&folder.host_path, &folder.guest_path, perms)
            .map_err(|e| FolderError {
                host_path: folder.host_path.clone(),
                guest_path: folder.guest_path.clone(),
                why: e.root_cause().to_string(),
            })?;
    }
    Ok(wasi.build())
}

fn base(environment: &[EnvironmentGrant], output: &GuestOutput) -> WasiCtxBuilder {
    let mut wasi = WasiCtxBuilder::new();
    wasi.stdout(GuestStream::new(output, Stream::Out));
    wasi.stderr(GuestStream::new(output, Stream::Err));
    wasi.max_random_size(RANDOM_BYTES);
    wasi.allow_tcp(false);
    wasi.allow_udp(false);
    wasi.allow_ip_name_lookup(false);
    for variable in environment {
        wasi.env(&variable.name, &variable.value);
    }
    wasi
}
