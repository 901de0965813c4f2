//! Compiling: untrusted work, since wasmtime promises no bounds for it. The program calls itself for each
//! component that the cache does not have, and the child bounds itself before it reads a byte: memory, processor
//! time, no files. It gets the component on standard input and answers with the compiled code on standard output.

use std::{
    ffi::OsString,
    io::{self, Read as _, Write as _},
    path::PathBuf,
    process::{ExitCode, ExitStatus, Stdio},
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    process::{Child, Command},
};

use super::{
    LoadError,
    engine::{self, Profile},
    limits::{
        COMPILE_CPU_SECONDS, COMPILE_MEMORY_BYTES, COMPILE_THREADS, COMPILED_BYTES,
        MAX_COMPONENT_BYTES,
    },
};
use crate::harmless::shown;

/// The subcommand of the program that compiles what is on its standard input; for nobody's fingers.
pub const COMMAND: &str = "compile-component";

/// Of what the child says on standard error.
const SAID_BYTES: u64 = 4 << 10;

/// Where components are compiled.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Compiler {
    /// On threads of this process: for programs that embed this library and trust their components not to
    /// exhaust a compiler. A compilation can't be stopped.
    #[default]
    InProcess,
    /// In a process of its own for each component, which this program becomes when it is called with
    /// [`COMMAND`]. It is bounded in memory and time, and killed when it is late.
    Apart(PathBuf),
}

impl Compiler {
    /// This very program, which has to be `agentloop-host` or hand [`COMMAND`] to [`compile_stdin`].
    pub fn this_program() -> Self {
        // The name on disk can be another version's by now.
        let image = PathBuf::from("/proc/self/exe");
        if cfg!(target_os = "linux") && image.exists() {
            return Self::Apart(image);
        }
        std::env::current_exe().map_or(Self::InProcess, Self::Apart)
    }
}

/// Compiles in a child and gives its answer: compiled code. Dropping the future kills the child.
pub(super) async fn apart(
    program: PathBuf,
    profile: Profile,
    wasm: &[u8],
) -> Result<Vec<u8>, LoadError> {
    let start = |source: io::Error| LoadError::Compiler {
        why: format!("can't start `{}`: {source}", program.display()),
    };
    let mut command = Command::new(&program);
    command
        .args([COMMAND, profile.as_str()])
        .env_clear()
        .env("RAYON_NUM_THREADS", COMPILE_THREADS.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    #[cfg(unix)]
    command.process_group(0).arg0("agentloop-host");
    let mut child = Group(command.spawn().map_err(start)?);
    let (Some(mut stdin), Some(stdout), Some(stderr)) = (
        child.0.stdin.take(),
        child.0.stdout.take(),
        child.0.stderr.take(),
    ) else {
        return Err(start(io::ErrorKind::BrokenPipe.into()));
    };
    let give = async move {
        // A child that has died no longer reads, and its status says why.
        let _ = stdin.write_all(wasm).await;
        let _ = stdin.shutdown().await;
    };
    let take = async {
        let mut code = Vec::new();
        let limit = COMPILED_BYTES + 1;
        stdout
            .take(limit)
            .read_to_end(&mut code)
            .await
            .map(|_| code)
    };
    let hear = async {
        let mut said = Vec::new();
        let mut stderr = stderr.take(SAID_BYTES);
        let _ = stderr.read_to_end(&mut said).await;
        // The rest is let go, so that nobody waits for it to be read.
        let _ = tokio::io::copy(&mut stderr.into_inner(), &mut tokio::io::sink()).await;
        String::from_utf8_lossy(&said).into_owned()
    };
    let ((), code, said) = tokio::join!(give, take, hear);
    let code = code.map_err(start)?;
    if code.len() as u64 > COMPILED_BYTES {
        return Err(LoadError::Compile {
            why: format!("its compiled code has more than {COMPILED_BYTES} bytes"),
        });
    }
    let status = child.0.wait().await.map_err(start)?;
    if status.success() {
        return Ok(code);
    }
    let said = shown(said.trim(), 1000, false);
    Err(match status.code() {
        Some(CANT_COMPILE) => LoadError::Compile { why: said },
        _ => LoadError::Compiler {
            why: died(status, &said),
        },
    })
}

/// The child's exit code for a component that does not compile; others are faults of the compiler's process.
const CANT_COMPILE: i32 = 65;

fn died(status: ExitStatus, said: &str) -> String {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        use rustix::process::Signal;
        if signal == Signal::XCPU.as_raw() || signal == Signal::KILL.as_raw() {
            return format!(
                "it was ended by signal {signal}: it may take {COMPILE_CPU_SECONDS} s of processor time"
            );
        }
        return format!(
            "it was ended by signal {signal}, as when it needs more than its {} MiB of memory: {said}",
            COMPILE_MEMORY_BYTES >> 20
        );
    }
    format!("it ended with {status}: {said}")
}

/// A child and whatever it might have started.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        // Once it was waited for, its number can be another's.
        #[cfg(unix)]
        if let Some(group) = self
            .0
            .id()
            .and_then(|id| rustix::process::Pid::from_raw(i32::try_from(id).ok()?))
        {
            // It may be gone already.
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
    }
}

/// The child's whole life. `profile` is what the parent has given behind [`COMMAND`].
pub fn compile_stdin(profile: Option<OsString>) -> ExitCode {
    match compile(profile) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Fault::Component(why)) => {
            eprintln!("{why}");
            ExitCode::from(CANT_COMPILE as u8)
        }
        Err(Fault::Process(why)) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

enum Fault {
    Component(String),
    Process(String),
}

fn compile(profile: Option<OsString>) -> Result<(), Fault> {
    let process = |why: &dyn std::fmt::Display| Fault::Process(why.to_string());
    bound_itself().map_err(|e| process(&format_args!("can't set its limits: {e}")))?;
    let profile = profile
        .as_deref()
        .and_then(|name| Profile::parse(name.to_str()?))
        .ok_or_else(|| process(&"it is called by agentloop-host itself, and by nobody else"))?;
    let mut wasm = Vec::new();
    io::stdin()
        .lock()
        .take(MAX_COMPONENT_BYTES as u64 + 1)
        .read_to_end(&mut wasm)
        .map_err(|e| process(&e))?;
    if wasm.len() > MAX_COMPONENT_BYTES {
        return Err(Fault::Component("it is too large".to_owned()));
    }
    let engine = engine::for_compiling(profile).map_err(|e| process(&e))?;
    let code = engine
        .precompile_component(&wasm)
        .map_err(|e| Fault::Component(format!("{e:#}")))?;
    io::stdout()
        .lock()
        .write_all(&code)
        .map_err(|e| process(&e))
}

/// Held by the kernel from here on; nothing raises them again.
#[cfg(unix)]
fn bound_itself() -> io::Result<()> {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let mut bounds = vec![
        (Resource::Cpu, COMPILE_CPU_SECONDS),
        // No core dump of a component that crashes the compiler, and no file at all.
        (Resource::Core, 0),
        (Resource::Fsize, 0),
        (Resource::Nofile, 64),
    ];
    // Others have no such bound, or one that does not hold.
    if cfg!(target_os = "linux") {
        bounds.push((Resource::As, COMPILE_MEMORY_BYTES));
    }
    for (resource, limit) in bounds {
        let both = Rlimit {
            current: Some(limit),
            maximum: Some(limit),
        };
        setrlimit(resource, both)?;
    }
    Ok(())
}

#[cfg(not(unix))]
fn bound_itself() -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::engine::GuestEngine;

    #[test]
    fn what_the_child_compiles_fits_the_engine_that_runs_it() {
        use std::hash::{DefaultHasher, Hash as _, Hasher as _};
        let hash = |engine: &wasmtime::Engine| {
            let mut hasher = DefaultHasher::new();
            engine.precompile_compatibility_hash().hash(&mut hasher);
            hasher.finish()
        };
        for profile in [Profile::Plain, Profile::Metered] {
            let running = GuestEngine::new(profile, Some(4)).unwrap();
            let compiling = engine::for_compiling(profile).unwrap();
            assert_eq!(hash(&running.engine), hash(&compiling));
            assert_eq!(Profile::parse(profile.as_str()), Some(profile));
        }
    }
}
