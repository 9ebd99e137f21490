//! A compiled template with checks between its instructions.
//!
//! Values share their parts, so a few instructions can build a list that would be astronomic once
//! written out, or so deep that dropping it overruns the stack; and the engine compares, converts and
//! drops values without asking. So each instruction that makes a value is followed by a look at it
//! ([`super::limits`]): what stands on the engine's stack is always small enough for whatever comes
//! next. Must not know which limits there are.

use std::collections::BTreeMap;

use minijinja::machinery::{
    Instruction, Instructions, eval, get_compiled_template, make_string_output,
};
use minijinja::{Environment, Error, Template, Value};

/// Filter over a value just made; its result takes the value's place. No template can name these.
pub(super) const PLAIN: &str = "<plain>";
/// Test of a value that was stored.
pub(super) const SMALL: &str = "<small>";
/// Filter over a value about to be stored in a namespace.
pub(super) const KEPT: &str = "<kept>";

/// Not one of the engine's slots for looked-up filters.
const NO_SLOT: u8 = u8::MAX;

/// Renders with the environment's three checks.
pub(super) fn render<'env>(
    environment: &'env Environment<'env>,
    template: &Template<'env, 'env>,
    context: Value,
) -> Result<String, Error> {
    let compiled = get_compiled_template(template);
    let instructions = checked(&compiled.instructions);
    let blocks: BTreeMap<_, _> = compiled
        .blocks
        .iter()
        .map(|(name, block)| (*name, checked(block)))
        .collect();
    let mut text = String::new();
    let escape = compiled.initial_auto_escape.clone();
    let mut output = make_string_output(&mut text);
    eval(
        environment,
        &instructions,
        context,
        &blocks,
        &mut output,
        escape,
    )?;
    drop(output);
    Ok(text)
}

/// The same program with its checks; jumps lead where they led.
fn checked<'a>(plain: &Instructions<'a>) -> Instructions<'a> {
    let all = || (0..).map_while(|at| Some((at, plain.get(at)?)));
    let mut places = Vec::new();
    let mut place = 0u32;
    for (_, instruction) in all() {
        places.push(place);
        place += 1 + extra(instruction);
    }
    places.push(place);
    let moved = |to: u32| places.get(to as usize).copied().unwrap_or(to);

    let mut checked = Instructions::new(plain.name(), plain.source());
    for (at, instruction) in all() {
        let line = plain.get_line(at).and_then(|line| u16::try_from(line).ok());
        let mut add = |instruction| match line {
            Some(line) => checked.add_with_line(instruction, line),
            None => checked.add(instruction),
        };
        let filter = |name| Instruction::ApplyFilter(name, Some(1), NO_SLOT);
        let mut instruction = instruction.clone();
        if let Some(target) = target(&mut instruction) {
            *target = moved(*target);
        }
        match kind(&instruction) {
            Kind::Makes => {
                add(instruction);
                add(filter(PLAIN));
            }
            Kind::Looks => {
                add(instruction);
                add(Instruction::DupTop);
                add(Instruction::PerformTest(SMALL, Some(1), NO_SLOT));
                add(Instruction::DiscardTop);
            }
            Kind::Stores => {
                add(Instruction::Swap);
                add(filter(KEPT));
                add(Instruction::Swap);
                add(instruction);
            }
            Kind::Other => {
                add(instruction);
            }
        }
    }
    checked
}

enum Kind {
    /// Leaves a new value on the stack, or has done work that takes time.
    Makes,
    /// Leaves a stored value on the stack; a namespace may have grown since it was last seen.
    Looks,
    /// Puts the second value of the stack into the namespace on top.
    Stores,
    /// Moves, jumps and parts of values.
    Other,
}

fn kind(instruction: &Instruction<'_>) -> Kind {
    match instruction {
        Instruction::Add
        | Instruction::Mul
        | Instruction::Pow
        | Instruction::Slice
        | Instruction::StringConcat
        | Instruction::Eq
        | Instruction::Ne
        | Instruction::Gt
        | Instruction::Gte
        | Instruction::Lt
        | Instruction::Lte
        | Instruction::In
        | Instruction::CompareAndPreserve(_)
        | Instruction::BuildList(_)
        | Instruction::BuildMap(_)
        | Instruction::BuildTuple(_)
        | Instruction::ApplyFilter(..)
        | Instruction::PerformTest(..)
        | Instruction::CallFunction(..)
        | Instruction::CallMethod(..)
        | Instruction::CallObject(_)
        | Instruction::EndCapture => Kind::Makes,
        Instruction::Lookup(_) => Kind::Looks,
        Instruction::SetAttr(_) => Kind::Stores,
        _ => Kind::Other,
    }
}

/// Instructions that are added to this one.
fn extra(instruction: &Instruction<'_>) -> u32 {
    match kind(instruction) {
        Kind::Makes => 1,
        Kind::Looks | Kind::Stores => 3,
        Kind::Other => 0,
    }
}

/// Where it may jump to.
fn target<'i>(instruction: &'i mut Instruction<'_>) -> Option<&'i mut u32> {
    match instruction {
        Instruction::Jump(target)
        | Instruction::JumpIfFalse(target)
        | Instruction::JumpIfFalseOrPop(target)
        | Instruction::JumpIfTrueOrPop(target)
        | Instruction::Iterate(target)
        | Instruction::BuildMacro(_, target, _) => Some(target),
        _ => None,
    }
}
