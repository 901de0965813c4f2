//! `wasi:config/store`: the granted environment variables once more, for components that look for their settings
//! there. Not part of WASI 0.2 yet; these are the versions that components of other hosts were built with.

use wasmtime::{
    StoreContextMut,
    component::{ComponentType, Linker, Lower},
};

use super::super::store::CallState;

/// As components name it.
pub(in super::super) const INTERFACES: [&str; 2] = [
    "wasi:config/store@0.2.0-draft",
    "wasi:config/store@0.2.0-rc.1",
];

/// Never made: looking up what is there does not fail.
#[derive(ComponentType, Lower)]
#[component(variant)]
#[expect(dead_code, reason = "the interface has it")]
enum Error {
    #[component(name = "upstream")]
    Upstream(String),
    #[component(name = "io")]
    Io(String),
}

pub(in super::super) fn add_to_linker(linker: &mut Linker<CallState>) -> wasmtime::Result<()> {
    for interface in INTERFACES {
        let mut store = linker.instance(interface)?;
        store.func_wrap("get", get)?;
        store.func_wrap("get-all", get_all)?;
    }
    Ok(())
}

type Got<T> = wasmtime::Result<(Result<T, Error>,)>;

fn get(call: StoreContextMut<'_, CallState>, (key,): (String,)) -> Got<Option<String>> {
    let variables = &call.data().variables;
    let found = variables.iter().find(|variable| variable.name == key);
    Ok((Ok(found.map(|variable| variable.value.clone())),))
}

fn get_all(call: StoreContextMut<'_, CallState>, (): ()) -> Got<Vec<(String, String)>> {
    let variables = call.data().variables.iter();
    let all = variables.map(|variable| (variable.name.clone(), variable.value.clone()));
    Ok((Ok(all.collect()),))
}
