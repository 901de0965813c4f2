//! Shapes that make compilers slow or large, found by reading, before one is asked. Reading takes time in
//! proportion to the bytes, whatever they say.

use wasmparser::{FunctionBody, Operator, Parser, Payload};

use super::{
    LoadError,
    limits::{
        BLOCK_DEPTH, BRANCH_TARGETS, COMPONENT_DEPTH, COMPONENT_PARTS, FUNCTION_BYTES, FUNCTIONS,
        LOCALS,
    },
};
use crate::harmless::shown;

/// That a component is within what any compiler made so far gives.
pub(super) fn check(wasm: &[u8]) -> Result<(), LoadError> {
    let mut depth = 0;
    let mut parts = 0;
    let mut functions = 0;
    for payload in Parser::new(0).parse_all(wasm) {
        match payload.map_err(damaged(wasm))? {
            Payload::Version { .. } => {
                depth += 1;
                parts += 1;
                within("modules and components in it", parts, COMPONENT_PARTS)?;
                within("components inside of each other", depth, COMPONENT_DEPTH)?;
            }
            Payload::End(_) => depth = depth.saturating_sub(1),
            Payload::CodeSectionStart { count, .. } => {
                functions += count as usize;
                within("functions", functions, FUNCTIONS)?;
            }
            Payload::CodeSectionEntry(body) => function(&body, wasm)?,
            _ => {}
        }
    }
    Ok(())
}

fn function(body: &FunctionBody<'_>, wasm: &[u8]) -> Result<(), LoadError> {
    let bytes = body.range().len();
    within("bytes in one function", bytes, FUNCTION_BYTES)?;
    let mut locals = 0_usize;
    for group in body.get_locals_reader().map_err(damaged(wasm))? {
        let (count, _) = group.map_err(damaged(wasm))?;
        locals = locals.saturating_add(count as usize);
    }
    within("variables in one function", locals, LOCALS)?;
    let mut blocks = 0_usize;
    let mut targets = 0_usize;
    for operator in body.get_operators_reader().map_err(damaged(wasm))? {
        match operator.map_err(damaged(wasm))? {
            Operator::Block { .. } | Operator::Loop { .. } | Operator::If { .. } => {
                blocks += 1;
                within("blocks inside of each other", blocks, BLOCK_DEPTH)?;
            }
            Operator::End => blocks = blocks.saturating_sub(1),
            Operator::BrTable { targets: table } => {
                targets = targets.saturating_add(table.len() as usize);
                within("branch targets in one function", targets, BRANCH_TARGETS)?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn within(what: &'static str, has: usize, limit: usize) -> Result<(), LoadError> {
    if has <= limit {
        Ok(())
    } else {
        Err(LoadError::TooComplex { what, limit })
    }
}

fn damaged(wasm: &[u8]) -> impl Fn(wasmparser::BinaryReaderError) -> LoadError {
    move |e| LoadError::Damaged {
        at: e.offset(),
        size: wasm.len(),
        why: shown(e.message(), 300, false),
    }
}
