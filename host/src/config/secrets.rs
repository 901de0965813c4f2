//! The tables `[secrets.NAME]`: what the host puts into requests of tools that never see it. All of it counts only
//! where it is trusted, since it names variables, files and programs of this machine.

use std::{collections::BTreeMap, sync::Arc};

use http::{HeaderName, HeaderValue};

use super::{
    Inputs, Origin, env_vars,
    key::{self, Entry},
    keys,
    layers::{Context, Layers},
    node::Node,
    origin::Fault,
    resolve::not_text,
    shown,
};
use crate::{
    capability::{
        HostPattern, OriginPattern, SECRET_PLACEHOLDER, Scheme, SecretGrant, SecretPlace,
        SecretSource, SecretValue,
    },
    ids::SecretName,
};

pub(super) fn name(node: &Node, key: &str, cx: &mut Context) -> Option<SecretName> {
    let text = key::text(node, key, cx)?;
    match SecretName::parse(&text) {
        Ok(name) => Some(name),
        Err(error) => {
            cx.faults.push(node.fault(format!("`{key}`: {error}")));
            None
        }
    }
}

/// A host alone means https.
pub(super) fn host(node: &Node, key: &str, cx: &mut Context) -> Option<OriginPattern> {
    let written = key::text(node, key, cx)?;
    let text = match written == "*" || written.contains("://") {
        true => written.clone(),
        false => format!("https://{written}"),
    };
    let why = match OriginPattern::parse(&text) {
        Err(error) => crate::harmless::shown(&error.to_string(), 500, false),
        Ok(OriginPattern::Origin {
            scheme: Scheme::Http,
            host,
            ..
        }) if !is_this_machine(&host) => format!(
            "a secret goes to `{}` only over https, where nobody reads along",
            shown(&written)
        ),
        Ok(OriginPattern::Any) => {
            "a secret is bound to certain hosts; write them one by one".to_owned()
        }
        Ok(origin) => return Some(origin),
    };
    cx.faults.push(node.fault(format!("`{key}`: {why}")));
    None
}

fn is_this_machine(host: &HostPattern) -> bool {
    let HostPattern::Exact(host) = host else {
        return false;
    };
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost"
        || address
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

pub(super) fn header(node: &Node, key: &str, cx: &mut Context) -> Option<Option<String>> {
    /// What the host itself says of a message; a secret there would be dropped or would break it.
    const TAKEN: [&str; 12] = [
        "host",
        "connection",
        "content-length",
        "transfer-encoding",
        "te",
        "trailer",
        "upgrade",
        "keep-alive",
        "accept-encoding",
        "range",
        "proxy-authorization",
        "proxy-connection",
    ];
    let text = key::text(node, key, cx)?;
    let why = match HeaderName::try_from(text.as_str()) {
        Ok(name) if !TAKEN.contains(&name.as_str()) => return Some(Some(name.as_str().to_owned())),
        Ok(_) => "which this program sets itself",
        Err(_) => "which is no name of a header",
    };
    cx.faults
        .push(node.fault(format!("`{key}` names `{}`, {why}", shown(&text))));
    None
}

pub(super) fn query(node: &Node, key: &str, cx: &mut Context) -> Option<Option<String>> {
    let text = key::text(node, key, cx)?;
    let is_plain = text
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.'));
    if is_plain {
        return Some(Some(text));
    }
    cx.faults.push(node.fault(format!(
        "`{key}` names `{}`; a parameter takes A-Z a-z 0-9 _ - .",
        shown(&text)
    )));
    None
}

pub(super) fn template(node: &Node, key: &str, cx: &mut Context) -> Option<String> {
    let text = key::text(node, key, cx)?;
    let why = if text.matches(SECRET_PLACEHOLDER).count() != 1 {
        "it has to hold `{secret}` once, where the value stands"
    } else if HeaderValue::from_str(&text).is_err() || !text.is_ascii() {
        "it holds a character that a header can't carry"
    } else {
        return Some(text);
    };
    cx.faults
        .push(node.fault(format!("`{key}` says `{}`: {why}", shown(&text))));
    None
}

/// Those that count, complete. What is wrong with one is noted as a fault.
pub(super) fn all(layers: &mut Layers, inputs: &Inputs) -> Vec<Arc<SecretGrant>> {
    let mut names: BTreeMap<SecretName, Origin> = BTreeMap::new();
    for table in &layers.tables {
        let tables = table.get("secrets").map(Node::members).unwrap_or_default();
        for member in tables {
            if let Ok(name) = SecretName::parse(&member.key) {
                names.insert(name, member.origin.clone());
            }
        }
    }
    let mut all = Vec::new();
    for (name, origin) in names {
        match one(layers, inputs, &name) {
            Ok(secret) => all.push(Arc::new(secret)),
            Err(_) if is_withheld(layers, &name) => {}
            Err(why) => layers.cx.faults.push(Fault {
                origin,
                message: format!("`[secrets.{name}]` {why}"),
            }),
        }
    }
    all
}

/// What is wrong with it may stand in the part that does not count, or have been told already.
fn is_withheld(layers: &Layers, name: &SecretName) -> bool {
    let prefix = format!("secrets.{name}.");
    layers.withheld.iter().any(|w| w.key.starts_with(&prefix))
        || (layers.cx.faults.iter()).any(|fault| fault.message.contains(&format!("`{prefix}")))
}

fn one(
    layers: &mut Layers,
    inputs: &Inputs,
    name: &SecretName,
) -> Result<SecretGrant, &'static str> {
    let path = |entry: &Entry| entry.path.replace(keys::ANY_PLUGIN, name.as_str());
    let variable = layers.value_at(&keys::SECRET_ENV, &path(&keys::SECRET_ENV.entry), None);
    let file = layers.value_at(&keys::SECRET_FILE, &path(&keys::SECRET_FILE.entry), None);
    let command = layers.value_at(
        &keys::SECRET_COMMAND,
        &path(&keys::SECRET_COMMAND.entry),
        Vec::new(),
    );
    let origins = layers.value_at(
        &keys::SECRET_HOSTS,
        &path(&keys::SECRET_HOSTS.entry),
        Vec::new(),
    );
    let header = layers.value_at(
        &keys::SECRET_HEADER,
        &path(&keys::SECRET_HEADER.entry),
        None,
    );
    let query = layers.value_at(&keys::SECRET_QUERY, &path(&keys::SECRET_QUERY.entry), None);
    let template = layers.value_at(
        &keys::SECRET_VALUE,
        &path(&keys::SECRET_VALUE.entry),
        SECRET_PLACEHOLDER.to_owned(),
    );
    let source = match (variable, file, command) {
        (Some(variable), None, argv) if argv.is_empty() => {
            let value = match inputs.environment.get(&variable) {
                Ok(value) => value.map(SecretValue::new),
                Err(env_vars::NotText) => {
                    layers.cx.faults.push(not_text(&shown(&variable)));
                    None
                }
            };
            SecretSource::Environment { variable, value }
        }
        (None, Some(path), argv) if argv.is_empty() => SecretSource::File(path),
        (None, None, argv) if !argv.is_empty() => SecretSource::Command(argv),
        (None, None, _) => return Err("says no source; add `env`, `file` or `command`"),
        _ => return Err("has more than one source; keep one of `env`, `file` and `command`"),
    };
    let place = match (header, query) {
        (Some(name), None) => SecretPlace::Header(name),
        (None, Some(name)) => SecretPlace::Query(name),
        (None, None) => return Err("says no place; add `header` or `query`"),
        (Some(_), Some(_)) => return Err("has two places; keep one of `header` and `query`"),
    };
    if origins.is_empty() {
        return Err("is bound to no host; add `hosts`");
    }
    Ok(SecretGrant {
        name: name.clone(),
        source,
        origins,
        place,
        template,
    })
}

/// Two secrets of one plugin in the same place at the same host: only one could be sent.
pub(super) fn clash(secrets: &[Arc<SecretGrant>]) -> Option<(&SecretName, &SecretName)> {
    let pairs = secrets
        .iter()
        .enumerate()
        .flat_map(|(i, one)| secrets[..i].iter().map(move |other| (other, one)));
    let mut clashing = pairs.filter(|(a, b)| {
        a.place == b.place && a.origins.iter().any(|origin| b.origins.contains(origin))
    });
    clashing.next().map(|(a, b)| (&a.name, &b.name))
}
