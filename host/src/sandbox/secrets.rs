//! The secrets of one call: their values, read outside of the guest, and where they go.

use std::{
    collections::HashMap,
    io,
    path::Path,
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use http::{HeaderMap, HeaderValue, header, uri::PathAndQuery};
use tokio::{io::AsyncReadExt as _, process::Command, sync::OnceCell, time::timeout};

use super::scrub::Scrubber;
use crate::{
    capability::{
        InvalidSecret, MAX_SECRET_BYTES, SECRET_PLACEHOLDER, Scheme, SecretGrant, SecretPlace,
        SecretSource, SecretValue,
    },
    ids::SecretName,
};

/// How long a command may take to print a value.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(20);

/// Why a secret has no value. Says nothing of the value, and no path of this machine: a model reads it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum SecretError {
    #[error("the environment variable `{variable}` is not set; set it before the program starts")]
    Unset { variable: String },
    #[error("what the environment variable `{variable}` holds can't be used: {why}")]
    Variable {
        variable: String,
        why: InvalidSecret,
    },
    #[error(
        "the file that `secrets.{name}.file` names can't be read ({why}); write the value into it"
    )]
    File { name: SecretName, why: String },
    #[error("what the file that `secrets.{name}.file` names holds can't be used: {why}")]
    FileContent {
        name: SecretName,
        why: InvalidSecret,
    },
    #[error("the program that `secrets.{name}.command` names gave no value: {why}")]
    Command { name: SecretName, why: String },
    #[error("what the program that `secrets.{name}.command` names printed can't be used: {why}")]
    CommandOutput {
        name: SecretName,
        why: InvalidSecret,
    },
}

/// What the commands printed, for all calls of a sandbox.
#[derive(Default)]
pub(super) struct CommandValues(Mutex<HashMap<SecretSource, Arc<OnceCell<SecretValue>>>>);

/// The secrets that one call may use.
#[derive(Clone)]
pub(super) struct CallSecrets(Arc<Loaded>);

struct Loaded {
    secrets: Vec<(Arc<SecretGrant>, Result<SecretValue, SecretError>)>,
    scrubber: Scrubber,
}

/// A secret that belongs to a request and is not there.
pub(super) struct Missing<'a> {
    pub(super) name: &'a SecretName,
    pub(super) why: &'a SecretError,
}

impl CallSecrets {
    /// Reads the values. May take as long as the commands take; ends them when it is dropped.
    pub(super) async fn load(grants: &[Arc<SecretGrant>], commands: &CommandValues) -> Self {
        let mut secrets = Vec::with_capacity(grants.len());
        for grant in grants {
            let value = commands.value(grant).await;
            if let Err(why) = &value {
                tracing::warn!(secret = %grant.name, "a secret has no value: {why}");
            }
            secrets.push((grant.clone(), value));
        }
        let known = secrets
            .iter()
            .filter_map(|(grant, value)| Some((&grant.name, value.as_ref().ok()?)));
        let scrubber = Scrubber::new(known);
        Self(Arc::new(Loaded { secrets, scrubber }))
    }

    pub(super) fn scrubber(&self) -> &Scrubber {
        &self.0.scrubber
    }

    /// Puts in what belongs to a request to this origin, in place of what the guest has there. `is_private`: only
    /// this machine can read along. Fails, with nothing to be sent, where a value is missing.
    pub(super) fn put_into(
        &self,
        headers: &mut HeaderMap,
        path: &mut PathAndQuery,
        (scheme, host, port): (Scheme, &str, u16),
        is_private: bool,
    ) -> Result<(), Missing<'_>> {
        let mut used = false;
        for (grant, value) in &self.0.secrets {
            let covers =
                |origin: &crate::capability::OriginPattern| origin.covers(scheme, host, port);
            if !grant.origins.iter().any(covers) || !(scheme == Scheme::Https || is_private) {
                continue;
            }
            let name = &grant.name;
            let value = value.as_ref().map_err(|why| Missing { name, why })?;
            let text = grant.template.replace(SECRET_PLACEHOLDER, value.expose());
            match &grant.place {
                SecretPlace::Header(header) => {
                    // Both are checked where they are made.
                    if let (Ok(header), Ok(mut text)) = (
                        http::HeaderName::try_from(header.as_str()),
                        HeaderValue::try_from(text),
                    ) {
                        text.set_sensitive(true);
                        headers.insert(header, text);
                    }
                }
                SecretPlace::Query(parameter) => *path = with_parameter(path, parameter, &text),
            }
            used = true;
        }
        if used {
            // A part of an echo could be a part of the secret.
            headers.remove(header::RANGE);
            headers.remove(header::IF_RANGE);
        }
        // What is packed can't be looked through.
        let identity = HeaderValue::from_static("identity");
        headers.insert(header::ACCEPT_ENCODING, identity);
        Ok(())
    }

    /// Takes the values out of what a server says of its answer.
    pub(super) fn scrub_headers(&self, headers: &mut HeaderMap) {
        let scrubber = self.scrubber();
        let named: Vec<_> = headers
            .keys()
            .filter(|name| scrubber.bytes(name.as_str().as_bytes()).is_some())
            .cloned()
            .collect();
        for name in named {
            headers.remove(name);
        }
        for value in headers.values_mut() {
            if let Some(scrubbed) = scrubber.bytes(value.as_bytes()) {
                *value = HeaderValue::from_bytes(&scrubbed)
                    .unwrap_or(HeaderValue::from_static("[secret]"));
            }
        }
        // A mask has another length.
        headers.remove(header::CONTENT_LENGTH);
    }
}

/// With the parameter at its end and nowhere else.
fn with_parameter(path: &PathAndQuery, parameter: &str, value: &str) -> PathAndQuery {
    let is_other = |pair: &&str| {
        let key = pair.split('=').next().unwrap_or_default();
        let mut decoded = url::form_urlencoded::parse(key.as_bytes());
        !pair.is_empty() && decoded.next().is_none_or(|(key, _)| key != parameter)
    };
    let pairs = path.query().unwrap_or_default().split('&');
    let mut query: String = pairs
        .filter(is_other)
        .flat_map(|pair| [pair, "&"])
        .collect();
    let mut own = url::form_urlencoded::Serializer::new(String::new());
    query.push_str(&own.append_pair(parameter, value).finish());
    // Made of parts of one and of what the serializer writes.
    PathAndQuery::try_from(format!("{}?{query}", path.path())).unwrap_or_else(|_| path.clone())
}

impl CommandValues {
    async fn value(&self, grant: &SecretGrant) -> Result<SecretValue, SecretError> {
        let name = || grant.name.clone();
        match &grant.source {
            SecretSource::Environment { variable, value } => {
                let variable = || variable.clone();
                match value {
                    Some(Ok(value)) => Ok(value.clone()),
                    Some(Err(why)) => Err(SecretError::Variable {
                        variable: variable(),
                        why: *why,
                    }),
                    None => Err(SecretError::Unset {
                        variable: variable(),
                    }),
                }
            }
            SecretSource::File(path) => {
                let text = read(path).await.map_err(|error| {
                    tracing::warn!(path = %path.display(), %error, "can't read a secret");
                    SecretError::File {
                        name: name(),
                        why: error.kind().to_string(),
                    }
                })?;
                SecretValue::new(&text)
                    .map_err(|why| SecretError::FileContent { name: name(), why })
            }
            SecretSource::Command(argv) => {
                let cell = self
                    .0
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .entry(grant.source.clone())
                    .or_default()
                    .clone();
                let value = cell.get_or_try_init(|| async {
                    let printed = timeout(COMMAND_TIMEOUT, printed(argv)).await;
                    let printed = printed
                        .unwrap_or_else(|_| Err(format!("it took more than {COMMAND_TIMEOUT:?}")))
                        .map_err(|why| SecretError::Command { name: name(), why })?;
                    SecretValue::new(&printed)
                        .map_err(|why| SecretError::CommandOutput { name: name(), why })
                });
                value.await.cloned()
            }
        }
    }
}

/// More than a value can have, so that a file that never ends is too long.
const READ_BYTES: u64 = MAX_SECRET_BYTES as u64 + 16;

async fn read(path: &Path) -> io::Result<String> {
    let mut text = Vec::new();
    let file = tokio::fs::File::open(path).await?;
    file.take(READ_BYTES).read_to_end(&mut text).await?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// What a program prints; what it says on standard error goes where this program's does.
async fn printed(argv: &[String]) -> Result<String, String> {
    let [program, arguments @ ..] = argv else {
        return Err("it has no name".to_owned());
    };
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| format!("it can't be started ({})", error.kind()))?;
    let mut text = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        let reading = stdout.take(READ_BYTES).read_to_end(&mut text).await;
        reading.map_err(|error| format!("its output can't be read ({})", error.kind()))?;
    }
    let status = child
        .wait()
        .await
        .map_err(|error| error.kind().to_string())?;
    match status.success() {
        true => Ok(String::from_utf8_lossy(&text).into_owned()),
        false => Err(format!("it ended with {status}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capability::OriginPattern;

    fn grant(name: &str, source: SecretSource, place: SecretPlace) -> Arc<SecretGrant> {
        Arc::new(SecretGrant {
            name: SecretName::parse(name).unwrap(),
            source,
            origins: vec![
                OriginPattern::parse("https://*.example.org").unwrap(),
                OriginPattern::parse("http://127.0.0.1:8080").unwrap(),
            ],
            place,
            template: "Bearer {secret}".into(),
        })
    }

    fn variable(value: Option<&str>) -> SecretSource {
        SecretSource::Environment {
            variable: "TOKEN".into(),
            value: value.map(SecretValue::new),
        }
    }

    fn header() -> SecretPlace {
        SecretPlace::Header("authorization".into())
    }

    async fn load(grants: &[Arc<SecretGrant>]) -> CallSecrets {
        CallSecrets::load(grants, &CommandValues::default()).await
    }

    #[tokio::test]
    async fn a_secret_goes_where_it_belongs_and_nowhere_else() {
        let secrets = load(&[grant("a", variable(Some("12345678")), header())]).await;
        for (scheme, host, port, is_private, goes) in [
            (Scheme::Https, "api.example.org", 443, false, true),
            (Scheme::Https, "example.org", 443, false, false),
            (Scheme::Https, "api.example.org", 8443, false, false),
            (Scheme::Http, "api.example.org", 80, false, false),
            (Scheme::Http, "127.0.0.1", 8080, true, true),
            (Scheme::Http, "127.0.0.1", 8080, false, false),
            (Scheme::Https, "api.example.net", 443, false, false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("range", HeaderValue::from_static("bytes=0-1"));
            let mut path = PathAndQuery::from_static("/a?b=c");
            let put = secrets.put_into(&mut headers, &mut path, (scheme, host, port), is_private);
            assert!(put.is_ok());
            assert_eq!(headers.contains_key("authorization"), goes, "{host}");
            assert_eq!(headers.contains_key("range"), !goes, "{host}");
            assert_eq!(path, "/a?b=c");
            assert!(!format!("{headers:?}").contains("12345678"));
        }
    }

    #[tokio::test]
    async fn a_guest_s_own_value_gives_way() {
        let query = SecretPlace::Query("key".into());
        let secrets = load(&[
            grant("a", variable(Some("12345678")), header()),
            grant("b", variable(Some("a b&c=d%e")), query),
        ])
        .await;
        let mut headers = HeaderMap::new();
        headers.append("authorization", HeaderValue::from_static("mine"));
        headers.append("authorization", HeaderValue::from_static("mine as well"));
        let mut path = PathAndQuery::from_static("/a?key=mine&x=1&%6Bey=mine&key&&y");
        let put = secrets.put_into(
            &mut headers,
            &mut path,
            (Scheme::Https, "api.example.org", 443),
            false,
        );
        assert!(put.is_ok());
        let all: Vec<_> = headers.get_all("authorization").iter().collect();
        assert_eq!(all, ["Bearer 12345678"]);
        assert_eq!(path, "/a?x=1&y&key=Bearer+a+b%26c%3Dd%25e");
    }

    #[tokio::test]
    async fn a_missing_value_says_what_to_set() {
        let dir = tempfile::tempdir().unwrap();
        let short = dir.path().join("short");
        std::fs::write(&short, "1\n").unwrap();
        let command = |argv: &[&str]| {
            SecretSource::Command(argv.iter().map(|part| (*part).to_owned()).collect())
        };
        for (source, said) in [
            (
                variable(None),
                "the environment variable `TOKEN` is not set",
            ),
            (
                variable(Some("1")),
                "`TOKEN` holds can't be used: it has less",
            ),
            (
                SecretSource::File(dir.path().join("none")),
                "`secrets.a.file` names can't be read",
            ),
            (
                SecretSource::File(short),
                "`secrets.a.file` names holds can't be used",
            ),
            (command(&["no-such-program-here"]), "can't be started"),
            (
                command(&["sh", "-c", "echo 12345678; exit 3"]),
                "exit status: 3",
            ),
            (command(&["sh", "-c", "echo 1"]), "printed can't be used"),
        ] {
            let secrets = load(&[grant("a", source, header())]).await;
            let missing = secrets.put_into(
                &mut HeaderMap::new(),
                &mut PathAndQuery::from_static("/"),
                (Scheme::Https, "api.example.org", 443),
                false,
            );
            let why = missing.err().unwrap().why.to_string();
            assert!(why.contains(said), "{why}");
            assert!(!why.contains(&*dir.path().to_string_lossy()), "{why}");
        }
    }

    #[tokio::test]
    async fn files_are_read_each_time_and_commands_run_once() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        let log = dir.path().join("log");
        std::fs::write(&file, "first-value\n").unwrap();
        let commands = CommandValues::default();
        let from_file = grant("a", SecretSource::File(file.clone()), header());
        let script = format!("echo ran >> '{}'; echo printed-value", log.display());
        let argv = ["sh", "-c", &script].map(str::to_owned).to_vec();
        let from_command = grant("b", SecretSource::Command(argv), header());
        let value = async |grant: &SecretGrant| {
            let value = commands.value(grant).await.unwrap();
            value.expose().to_owned()
        };
        assert_eq!(value(&from_file).await, "first-value");
        std::fs::write(&file, "second-value").unwrap();
        assert_eq!(value(&from_file).await, "second-value");
        for _ in 0..3 {
            assert_eq!(value(&from_command).await, "printed-value");
        }
        assert_eq!(std::fs::read_to_string(&log).unwrap(), "ran\n");
    }
}
