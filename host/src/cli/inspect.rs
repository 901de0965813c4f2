//! `inspect`: what a file is, without running anything of it.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

use serde_json::{Value, json};

use super::{
    requests::{self, Asked, Granted},
    terminal::{bad, caution, dim, good, harmless, one_line, strong},
    write,
};
use crate::{
    capability::{Access, Capability, Grants, Request},
    ids::PluginName,
    sandbox::{
        self, Act, Beside, FileKind, ImportNeeds, Inspection, MANIFEST_BYTES, MAX_COMPONENT_BYTES,
    },
    tool::{Annotations, ToolDefinition},
};

/// Exit code for plugins that this host can't use.
pub(super) const UNUSABLE: u8 = 7;
/// Longest line that is shown of one text.
const MAX_LINE_CHARS: usize = 200;

#[derive(Debug, clap::Args)]
pub struct InspectArgs {
    /// A .wasm file
    file: PathBuf,
    /// One JSON object, with the whole schemas
    #[arg(long)]
    json: bool,
}

/// `grants`: what the operator grants the plugin of this name now.
pub fn run(args: &InspectArgs, grants: &dyn Fn(&PluginName) -> Grants) -> anyhow::Result<ExitCode> {
    let wasm = match read(&args.file) {
        Ok(wasm) => wasm,
        Err(why) => {
            refuse(&args.file, &why);
            return Ok(ExitCode::from(UNUSABLE));
        }
    };
    let inspection = sandbox::inspect_with(&wasm, beside(&args.file).as_ref());
    let plugin = plugin_of(&args.file);
    let fault = inspection.check().err().map(|error| error.to_string());
    let shown = Shown {
        file: &args.file,
        plugin: &plugin,
        grants: &grants(&plugin),
        inspection: &inspection,
        faults: match &fault {
            Some(fault) => vec![fault.clone()],
            None => requests::faults(&inspection),
        },
        usable: fault.is_none() && !matches!(inspection.metadata, Some(Err(_))),
    };
    if args.json {
        write::stdout(&format!("{:#}\n", shown.json()))?;
    } else {
        write::stdout(&shown.text())?;
    }
    if shown.usable {
        return Ok(ExitCode::SUCCESS);
    }
    for fault in &shown.faults {
        refuse(&args.file, fault);
    }
    Ok(ExitCode::from(UNUSABLE))
}

fn refuse(file: &Path, why: &str) {
    eprintln!(
        "{} this host can't use `{}`: {}",
        bad().apply_to("error:"),
        one_line(&file.display().to_string(), MAX_LINE_CHARS),
        harmless(why)
    );
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let cannot = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => "there is no such file".to_owned(),
        _ => format!("it can't be read: {error}"),
    };
    // Before it is opened: a pipe would wait for a writer.
    let metadata = fs::metadata(path).map_err(cannot)?;
    if !metadata.is_file() {
        return Err("it is not a file".to_owned());
    }
    let mut wasm = Vec::new();
    File::open(path)
        .and_then(|file| {
            file.take(MAX_COMPONENT_BYTES as u64 + 1)
                .read_to_end(&mut wasm)
        })
        .map_err(cannot)?;
    if wasm.len() > MAX_COMPONENT_BYTES {
        let bytes = metadata.len().try_into().unwrap_or(usize::MAX);
        return Err(sandbox::LoadError::TooLarge { bytes }.to_string());
    }
    Ok(wasm)
}

/// The manifest that makes a program a tool, if there is one.
fn beside(file: &Path) -> Option<Beside> {
    let path = file.with_extension("toml");
    if !fs::metadata(&path).ok()?.is_file() {
        return None;
    }
    let mut manifest = String::new();
    File::open(&path)
        .ok()?
        .take(MANIFEST_BYTES as u64 + 1)
        .read_to_string(&mut manifest)
        .ok()?;
    Some(Beside {
        program: file.file_stem()?.to_string_lossy().into_owned(),
        manifest,
    })
}

fn plugin_of(file: &Path) -> PluginName {
    let stem = file.file_stem().unwrap_or_default();
    PluginName::of_file_stem(&stem.to_string_lossy())
}

struct Shown<'a> {
    file: &'a Path,
    plugin: &'a PluginName,
    grants: &'a Grants,
    inspection: &'a Inspection,
    faults: Vec<String>,
    usable: bool,
}

impl Shown<'_> {
    fn tools(&self) -> &[ToolDefinition] {
        requests::tools(self.inspection)
    }

    /// One JSON object; its keys are documented in the README.
    fn json(&self) -> Value {
        let tools: Vec<_> = self
            .tools()
            .iter()
            .map(|tool| self.tool_json(tool))
            .collect();
        let (kind, contract) = match &self.inspection.file {
            FileKind::Tool { version } => ("tools", version.as_deref()),
            FileKind::Functions => ("functions", None),
            FileKind::Command => ("command", None),
            FileKind::Http => ("http", None),
            FileKind::Act => ("act", None),
            FileKind::Component => ("component", None),
            FileKind::CoreModule => ("core module", None),
            FileKind::NotWasm { .. } => ("not wasm", None),
            FileKind::Damaged { .. } => ("damaged", None),
        };
        json!({
            "v": 1,
            "file": self.file.to_string_lossy(),
            "plugin": self.plugin,
            "digest": self.inspection.digest.to_string(),
            "size_bytes": self.inspection.size_bytes,
            "kind": kind,
            "contract": contract,
            "usable": self.usable,
            "faults": self.faults,
            "tools": self.inspection.metadata.is_some().then_some(tools),
            "act": match &self.inspection.act {
                Some(Ok(act)) => json!({
                    "name": act.name,
                    "version": act.version,
                    "description": act.description,
                    "not_taken": act.not_taken,
                }),
                Some(Err(why)) => json!({ "fault": why }),
                None => Value::Null,
            },
            "could_use": self
                .could_use()
                .iter()
                .map(|asked| self.asked_json(asked))
                .collect::<Vec<_>>(),
            "imports": self.inspection.imports,
            "imports_missing": self.missing(),
            "grants_to_add": self.grants_to_add(),
            "exports": self.inspection.exports,
        })
    }

    fn tool_json(&self, tool: &ToolDefinition) -> Value {
        let requests: Vec<_> = tool
            .requests
            .iter()
            .map(|request| self.asked_json(&asked(request)))
            .collect();
        json!({
            "name": tool.name,
            "title": tool.title,
            "description": tool.description,
            "input_schema": tool.input_schema,
            "output_schema": tool.output_schema,
            "annotations": tool.annotations,
            "parallel_safe": tool.parallel_safe,
            "timeout_ms": tool.timeout.map(|timeout| timeout.as_millis() as u64),
            "requests": requests,
        })
    }

    fn asked_json(&self, asked: &Asked) -> Value {
        let (granted, by, lacks) = match asked.granted(self.grants) {
            Granted::Whole { by } => ("whole", by, None),
            Granted::Partly { by, lacks } => ("partly", by, Some(lacks)),
            Granted::Not => ("not", Vec::new(), None),
        };
        json!({
            "capability": capability_json(&asked.capability),
            "reason": asked.reason,
            "granted": granted,
            "by": by,
            "lacks": lacks,
        })
    }

    fn could_use(&self) -> Vec<Asked> {
        self.inspection.could_use().iter().map(asked).collect()
    }

    /// Imports that this host does not have.
    fn missing(&self) -> Vec<&String> {
        let imports = self.inspection.imports.iter();
        imports
            .filter(|import| ImportNeeds::of(import) == ImportNeeds::Missing)
            .collect()
    }

    /// The lines of settings that grant what is not granted yet.
    fn grants_to_add(&self) -> Option<String> {
        let mut all = Asked::of(self.tools());
        if all.is_empty() {
            all = self.could_use();
        }
        requests::lines_to_add(self.plugin, &all, self.grants)
    }

    fn text(&self) -> String {
        let strong = strong().for_stdout();
        let dim = dim().for_stdout();
        let mut text = format!(
            "{}: {}, {}\n{}\n",
            strong.apply_to(one_line(&self.file.display().to_string(), MAX_LINE_CHARS)),
            kind_in_words(&self.inspection.file),
            requests::size(self.inspection.size_bytes),
            dim.apply_to(format!("  {}", self.inspection.digest)),
        );
        match (&self.inspection.file, &self.inspection.metadata) {
            (FileKind::Tool { .. }, None) => text.push_str(
                "\n  It carries no list of its tools, so they can be told only by running it: \
                 `agentloop-host tools` does that, in a sandbox.\n",
            ),
            _ => {
                for tool in self.tools() {
                    text.push('\n');
                    self.tool_text(tool, &mut text);
                }
            }
        }
        let declares = match &self.inspection.act {
            Some(Ok(act)) => {
                act_text(act, &mut text);
                true
            }
            Some(Err(why)) => {
                text.push_str(&format!(
                    "\nits custom section `act:component` can't be read: {}\n",
                    harmless(why)
                ));
                false
            }
            None => false,
        };
        let could_use = self.could_use();
        if !could_use.is_empty() {
            text.push_str(if declares {
                "\nit declares that it uses:\n"
            } else {
                "\nit declares nothing, and could use, if you grant it:\n"
            });
            for asked in &could_use {
                self.asked_text(asked, "  ", &mut text);
            }
        }
        if let Some(lines) = self.grants_to_add() {
            text.push_str(if could_use.is_empty() {
                "\nto grant what it asks for, in agentloop.toml:\n\n"
            } else {
                "\nto grant such things, in agentloop.toml, what of it it needs:\n\n"
            });
            for line in lines.lines() {
                text.push_str(&format!("  {line}\n"));
            }
        }
        if self.usable {
            for fault in &self.faults {
                text.push_str(&format!(
                    "\n{} {}\n",
                    caution().for_stdout().apply_to("note:"),
                    harmless(fault)
                ));
            }
        }
        if !self.inspection.imports.is_empty() {
            text.push_str(&format!("\n{}\n", dim.apply_to("imports")));
            for import in &self.inspection.imports {
                text.push_str(&format!(
                    "  {}{}\n",
                    dim.apply_to(one_line(import, MAX_LINE_CHARS)),
                    self.import_note(import)
                ));
            }
        }
        text
    }

    fn tool_text(&self, tool: &ToolDefinition, text: &mut String) {
        let dim = dim().for_stdout();
        let title = match &tool.title {
            Some(title) => format!(" ({})", one_line(title, MAX_LINE_CHARS)),
            None => String::new(),
        };
        text.push_str(&format!(
            "{}{title}  {}\n",
            strong().for_stdout().apply_to(&tool.name),
            dim.apply_to(traits(tool))
        ));
        for line in harmless(tool.description.trim()).lines() {
            text.push_str(&format!("  {line}\n"));
        }
        for argument in arguments(&tool.input_schema) {
            text.push_str(&format!("    {argument}\n"));
        }
        // What the component as a whole could use stands once, below.
        if self.inspection.could_use().is_empty() {
            for asked in Asked::of([tool]) {
                self.asked_text(&asked, "  asks to ", text);
            }
        }
    }

    fn asked_text(&self, asked: &Asked, lead: &str, text: &mut String) {
        let state = match asked.granted(self.grants) {
            Granted::Whole { by } => {
                good().apply_to(harmless(&format!("granted: {}", by.join("; "))))
            }
            Granted::Partly { by, lacks } => caution().apply_to(harmless(&format!(
                "granted in part: {}; not {lacks}",
                by.join("; ")
            ))),
            Granted::Not => caution().apply_to("not granted".to_owned()),
        };
        text.push_str(&format!(
            "{lead}{}: {}\n    {}\n",
            one_line(&asked.capability.to_string(), MAX_LINE_CHARS),
            one_line(&asked.reason, MAX_LINE_CHARS),
            state.for_stdout(),
        ));
    }

    fn import_note(&self, import: &str) -> String {
        // Core modules import other things than interfaces.
        if self.inspection.file == FileKind::CoreModule {
            return String::new();
        }
        match ImportNeeds::of(import) {
            ImportNeeds::Nothing => String::new(),
            ImportNeeds::Folders => "  only granted folders".to_owned(),
            ImportNeeds::Http => "  only granted origins".to_owned(),
            ImportNeeds::Environment => "  only granted variables".to_owned(),
            ImportNeeds::Refused => "  always refused".to_owned(),
            ImportNeeds::Missing => {
                let note = bad().for_stdout().apply_to("this host does not have it");
                format!("  {note}")
            }
        }
    }
}

fn act_text(act: &Act, text: &mut String) {
    text.push_str(&format!(
        "\n{}  {}\n",
        strong()
            .for_stdout()
            .apply_to(one_line(&act.name, MAX_LINE_CHARS)),
        one_line(&act.version, MAX_LINE_CHARS),
    ));
    for line in harmless(act.description.trim()).lines() {
        text.push_str(&format!("  {line}\n"));
    }
    for what in &act.not_taken {
        text.push_str(&format!(
            "  it also declares {}\n",
            one_line(what, MAX_LINE_CHARS)
        ));
    }
}

fn asked(request: &Request) -> Asked {
    Asked {
        capability: request.capability.clone(),
        reason: request.reason.clone(),
        tools: Vec::new(),
    }
}

fn kind_in_words(file: &FileKind) -> String {
    match file {
        FileKind::Tool { version } => format!(
            "a plugin, built for agentloop:tool {}",
            one_line(version.as_deref().unwrap_or("without a version"), 40)
        ),
        FileKind::Functions => {
            "a component with plain functions, each of which is a tool".to_owned()
        }
        FileKind::Command => "a component that runs as a program".to_owned(),
        FileKind::Http => "a component that answers HTTP requests".to_owned(),
        FileKind::Act => "an ACT component".to_owned(),
        FileKind::Component => "a component without tools".to_owned(),
        FileKind::CoreModule => "a core WebAssembly module".to_owned(),
        FileKind::NotWasm { looks_like } => (*looks_like).to_owned(),
        FileKind::Damaged { .. } => "damaged WebAssembly".to_owned(),
    }
}

/// What the tool claims of itself, in MCP's words.
fn traits(tool: &ToolDefinition) -> String {
    let Annotations {
        read_only,
        destructive,
        idempotent,
        open_world,
    } = tool.annotations;
    let mut words = vec![match (read_only, destructive) {
        (true, _) => "read-only",
        (false, true) => "destructive",
        (false, false) => "not destructive",
    }];
    if idempotent && !read_only {
        words.push("idempotent");
    }
    words.push(if open_world {
        "open world"
    } else {
        "closed world"
    });
    if !tool.parallel_safe {
        words.push("not parallel-safe");
    }
    let mut text = words.join(", ");
    if let Some(timeout) = tool.timeout {
        text.push_str(&format!(", own timeout {timeout:?}"));
    }
    text
}

/// One line for each argument.
fn arguments(schema: &Value) -> Vec<String> {
    let Some(properties) = schema["properties"].as_object() else {
        return Vec::new();
    };
    let required = |name: &str| {
        schema["required"]
            .as_array()
            .is_some_and(|required| required.iter().any(|r| r == name))
    };
    properties
        .iter()
        .map(|(name, schema)| {
            let mut line = format!("{name}: {}", kind_of_value(schema));
            if let Some(default) = schema.get("default") {
                line.push_str(&format!(" = {default}"));
            } else if !required(name) {
                line.push_str(", may be left out");
            }
            if let Some(description) = schema["description"].as_str() {
                line.push_str(&format!("  {}", description.trim()));
            }
            one_line(&line, MAX_LINE_CHARS)
        })
        .collect()
}

fn kind_of_value(schema: &Value) -> String {
    if let Some(words) = schema["enum"].as_array() {
        let words: Vec<_> = words.iter().map(Value::to_string).collect();
        return words.join(" | ");
    }
    // What may be null may be left out, which is said elsewhere.
    if let Some([of, null]) = schema["anyOf"].as_array().map(Vec::as_slice)
        && null["type"] == "null"
    {
        return kind_of_value(of);
    }
    match &schema["type"] {
        Value::String(kind) if kind == "array" => {
            format!("array of {}", kind_of_value(&schema["items"]))
        }
        Value::String(kind) => kind.clone(),
        Value::Array(kinds) => {
            let kinds: Vec<_> = kinds.iter().filter_map(Value::as_str).collect();
            kinds.join(" | ")
        }
        _ => "value".to_owned(),
    }
}

/// As the contract's custom section writes it.
fn capability_json(capability: &Capability) -> Value {
    match capability {
        Capability::Folder { path, access } => {
            let access = match access {
                Access::Read => "read",
                Access::Write => "write",
            };
            json!({ "folder": { "path": path, "access": access } })
        }
        Capability::Http { origin, methods } => {
            json!({ "http": { "origin": origin.to_string(), "methods": methods } })
        }
        Capability::Environment { name } => json!({ "environment": name }),
        Capability::Secret { name } => json!({ "secret": name }),
    }
}
