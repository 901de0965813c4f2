//! WASI for one call: nothing, and then exactly what its reach says.
//!
//! | interface | what a guest gets |
//! |---|---|
//! | files | the granted folders at their guest paths, read-only unless granted for writing; wasmtime-wasi opens everything below them without leaving them, through links included |
//! | environment | the granted variables, by name |
//! | arguments, standard input | none; for programs what their manifest says |
//! | standard output and error | lines for the operator, see [`super::output`]; a program's output is its answer |
//! | working directory | none |
//! | clocks, randomness | yes, at most [`RANDOM_BYTES`] of it at once |
//! | sockets, name look-up | none |
//! | `wasi:http` | through [`super::egress`] |
//! | exit | ends the call as a trap does |

use bytes::Bytes;
use wasmtime_wasi::{FsPerms, WasiCtx, WasiCtxBuilder, p2::pipe::MemoryInputPipe};

use super::{
    kinds::Process,
    limits::RANDOM_BYTES,
    output::{Captured, GuestOutput, GuestStream, Stream},
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

/// Where the three streams of a call lead, and its arguments.
pub(super) struct Surroundings {
    pub(super) output: GuestOutput,
    pub(super) process: Process,
    /// Takes standard output if the process says so.
    pub(super) printed: Captured,
}

impl Surroundings {
    /// Those of a component that is no program.
    pub(super) fn none(output: &GuestOutput) -> Self {
        Self {
            output: output.clone(),
            process: Process::default(),
            printed: Captured::new(0),
        }
    }
}

pub(super) fn closed(output: &GuestOutput) -> WasiCtx {
    base(&[], Surroundings::none(output)).build()
}

pub(super) fn without_folders(
    environment: &[EnvironmentGrant],
    surroundings: Surroundings,
) -> WasiCtx {
    base(environment, surroundings).build()
}

/// Opens the folders: may block.
pub(super) fn with_folders(
    folders: &[FolderGrant],
    environment: &[EnvironmentGrant],
    surroundings: Surroundings,
) -> Result<WasiCtx, FolderError> {
    let mut wasi = base(environment, surroundings);
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

fn base(environment: &[EnvironmentGrant], surroundings: Surroundings) -> WasiCtxBuilder {
    let Surroundings {
        output,
        process,
        printed,
    } = surroundings;
    let mut wasi = WasiCtxBuilder::new();
    if process.captures {
        wasi.stdout(printed);
    } else {
        wasi.stdout(GuestStream::new(&output, Stream::Out));
    }
    wasi.stderr(GuestStream::new(&output, Stream::Err));
    if !process.stdin.is_empty() {
        wasi.stdin(MemoryInputPipe::new(Bytes::from(process.stdin)));
    }
    wasi.args(&process.argv);
    wasi.max_random_size(RANDOM_BYTES);
    wasi.allow_tcp(false);
    wasi.allow_udp(false);
    wasi.allow_ip_name_lookup(false);
    for variable in environment {
        wasi.env(&variable.name, &variable.value);
    }
    wasi
}
