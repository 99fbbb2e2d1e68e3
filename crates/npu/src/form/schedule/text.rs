//! The text form of schedules. `parse(print(s)) == s` holds for every schedule
//! without faults.

use std::fmt::{self, Write};
use std::str::FromStr;

use girih_tensor::{Error, Result};

use super::{
    Affine, Argument, ArgumentRole, Buffer, BufferId, CallOperand, Cascade, Channel, Core, CoreCall,
    CoreInstruction, Descriptor, Dim, Direction, DmaAddress, Hop, Launch, LockChange, LockId, Parameter,
    ParameterValue, ProcessorCommand, Push, Route, Schedule, Start, Term, Tile, TileLock,
};
use crate::form::read::{FormLine, FormLines};

/// The maximum nesting depth of loops in a printed schedule.
pub const MAX_LOOPS: usize = 8;

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "schedule {} target {}", self.name, self.target)?;
        for (number, argument) in self.arguments.iter().enumerate() {
            writeln!(f, "argument {number} {argument}")?;
        }
        self.launches.iter().try_for_each(|launch| write!(f, "{launch}"))
    }
}

impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.name, self.role.name(), self.bytes)
    }
}

impl fmt::Display for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            ParameterValue::Int(value) => write!(f, "{}={value}", self.name),
            ParameterValue::Float(value) => write!(f, "{}={value:?}f", self.name),
        }
    }
}

impl fmt::Display for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "launch {}{}", self.name, if self.resident { " resident" } else { "" })?;
        for (number, Buffer { name, tile, address, bytes }) in self.buffers.iter().enumerate() {
            writeln!(f, "  buffer {number} {name} {tile} {address:#x} {bytes}")?;
        }
        for (number, TileLock { tile, id, initial }) in self.locks.iter().enumerate() {
            writeln!(f, "  lock {number} {tile} {id} {initial}")?;
        }
        self.descriptors.iter().try_for_each(|descriptor| writeln!(f, "  {descriptor}"))?;
        for Start { channel, descriptor, repeats } in &self.starts {
            writeln!(f, "  start {channel} {descriptor} {repeats}")?;
        }
        for route in &self.routes {
            write!(f, "  route {}", route.from)?;
            route.to.iter().try_for_each(|Hop { channel, hops }| write!(f, " {channel}@{hops}"))?;
            writeln!(f)?;
        }
        for Cascade { from, to } in &self.cascades {
            writeln!(f, "  cascade {from} {to}")?;
        }
        for core in &self.cores {
            writeln!(f, "  core {} {{", core.tile)?;
            core.program.iter().try_for_each(|instruction| print_instruction(instruction, 2, f))?;
            writeln!(f, "  }}")?;
        }
        writeln!(f, "  run {{")?;
        self.commands.iter().try_for_each(|command| print_command(command, 2, f))?;
        writeln!(f, "  }}")
    }
}

fn indent(depth: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    (0..depth).try_for_each(|_| f.write_str("  "))
}

fn print_instruction(instruction: &CoreInstruction, depth: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    indent(depth, f)?;
    match instruction {
        CoreInstruction::Loop { count, body } => {
            writeln!(f, "loop {count} {{")?;
            body.iter().try_for_each(|inner| print_instruction(inner, depth + 1, f))?;
            indent(depth, f)?;
            writeln!(f, "}}")
        }
        CoreInstruction::Acquire(change) => writeln!(f, "acquire {change}"),
        CoreInstruction::Release(change) => writeln!(f, "release {change}"),
        CoreInstruction::Call(call) => writeln!(f, "{call}"),
    }
}

fn print_command(command: &ProcessorCommand, depth: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    indent(depth, f)?;
    match command {
        ProcessorCommand::Loop { count, body } => {
            writeln!(f, "loop {count} {{")?;
            body.iter().try_for_each(|inner| print_command(inner, depth + 1, f))?;
            indent(depth, f)?;
            writeln!(f, "}}")
        }
        ProcessorCommand::Push(Push { channel, descriptor, offset, repeats, token }) => {
            let token = if *token { " token" } else { "" };
            writeln!(f, "push {channel} {descriptor} {offset} {repeats}{token}")
        }
        ProcessorCommand::Wait(channel) => writeln!(f, "wait {channel}"),
    }
}

impl fmt::Display for CoreCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "call {}", self.entry)?;
        self.operands.iter().try_for_each(|operand| write!(f, " {operand}"))?;
        if !self.parameters.is_empty() {
            f.write_str(" :")?;
        }
        self.parameters.iter().try_for_each(|parameter| write!(f, " {parameter}"))
    }
}

impl fmt::Display for CallOperand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, slot) in self.slots.iter().enumerate() {
            write!(f, "{}b{}", if number == 0 { "" } else { "|" }, slot.0)?;
        }
        if self.slot != Affine::default() {
            write!(f, "[{}]", self.slot)?;
        }
        write!(f, "@{}", self.offset)
    }
}

impl fmt::Display for Affine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.constant)?;
        self.terms.iter().try_for_each(|Term { depth, factor }| write!(f, "{factor:+}*i{depth}"))
    }
}

impl fmt::Display for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "descriptor {} {} {} {}", self.tile, self.id, self.address, Dims(&self.dims))?;
        if let Some(dim) = self.iteration {
            write!(f, " iteration {dim}")?;
        }
        if let Some(change) = self.acquire {
            write!(f, " acquire {change}")?;
        }
        if let Some(change) = self.release {
            write!(f, " release {change}")?;
        }
        self.next.map_or(Ok(()), |next| write!(f, " next {next}"))
    }
}

impl fmt::Display for DmaAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DmaAddress::Buffer(buffer, offset) => write!(f, "b{}+{offset}", buffer.0),
            DmaAddress::Argument(argument, offset) => write!(f, "a{argument}+{offset}"),
        }
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.size, self.stride)
    }
}

/// Prints dimensions, separated by commas.
pub(crate) struct Dims<'a>(pub &'a [Dim]);

impl fmt::Display for Dims<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        self.0.iter().try_for_each(|dim| write!(f, "{}{dim}", std::mem::replace(&mut separator, ",")))
    }
}

impl fmt::Display for LockChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "l{} {}", self.lock.0, self.value)
    }
}

impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let direction = match self.direction {
            Direction::Mm2s => "mm2s",
            Direction::S2mm => "s2mm",
        };
        write!(f, "{}:{direction}:{}", self.tile, self.number)
    }
}

impl FromStr for Schedule {
    type Err = Error;

    fn from_str(text: &str) -> Result<Schedule> {
        let mut lines = FormLines::new(text);
        let mut head = lines.need("schedule")?;
        let name = head.word("the program's name")?.to_owned();
        head.need("target")?;
        let target = head.word("the target's name")?.to_owned();
        head.end()?;
        let arguments = arguments(&mut lines)?;
        let mut launches = Vec::new();
        while let Some(line) = lines.take("launch") {
            launches.push(launch(line, &mut lines)?);
        }
        lines.end()?;
        Ok(Schedule { name, target, arguments, launches })
    }
}

/// Reads the number of an entry, which must be its index in the list.
fn numbered(line: &mut FormLine<'_>, index: usize) -> Result<()> {
    let number: usize = line.value("a number")?;
    if number == index {
        Ok(())
    } else {
        Err(line.error(format!("has the number {number}; {index} is needed")))
    }
}

/// Prints the arguments of a program, one a line.
pub(crate) fn print_arguments(arguments: &[Argument], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    arguments
        .iter()
        .enumerate()
        .try_for_each(|(number, argument)| writeln!(f, "argument {number} {argument}"))
}

/// Reads the arguments of a program, one per line.
pub(crate) fn arguments(lines: &mut FormLines<'_>) -> Result<Vec<Argument>> {
    let mut arguments = Vec::new();
    while let Some(mut line) = lines.take("argument") {
        numbered(&mut line, arguments.len())?;
        arguments.push(argument(&mut line)?);
    }
    Ok(arguments)
}

fn argument(line: &mut FormLine<'_>) -> Result<Argument> {
    let name = line.word("a name")?.to_owned();
    let word = line.word("a role")?;
    let role = ArgumentRole::ALL.iter().find(|role| role.name() == word);
    let role = *role.ok_or_else(|| line.error(format!("has '{word}', which is not a role")))?;
    let bytes = line.value("a size in bytes")?;
    line.end()?;
    Ok(Argument { name, role, bytes })
}

fn launch(mut head: FormLine<'_>, lines: &mut FormLines<'_>) -> Result<Launch> {
    let name = head.word("the launch's name")?.to_owned();
    let mut launch = Launch { name, resident: head.skip("resident"), ..Launch::default() };
    head.end()?;
    while let Some(mut line) = lines.take("buffer") {
        numbered(&mut line, launch.buffers.len())?;
        launch.buffers.push(buffer(&mut line)?);
    }
    while let Some(mut line) = lines.take("lock") {
        numbered(&mut line, launch.locks.len())?;
        let (tile, id) = (line.value("a tile")?, line.value("a lock's id")?);
        launch.locks.push(TileLock { tile, id, initial: line.value("an initial value")? });
        line.end()?;
    }
    while let Some(mut line) = lines.take("descriptor") {
        launch.descriptors.push(descriptor(&mut line)?);
    }
    while let Some(mut line) = lines.take("start") {
        let (channel, descriptor) = (line.value("a channel")?, line.value("a descriptor's id")?);
        launch.starts.push(Start { channel, descriptor, repeats: line.value("how many repeats")? });
        line.end()?;
    }
    while let Some(mut line) = lines.take("route") {
        let mut route = Route { from: line.value("a channel")?, to: Vec::new() };
        while let Some(word) = line.optional() {
            let (channel, hops) =
                word.split_once('@').ok_or_else(|| line.error("lacks the hops of an end"))?;
            let channel = line.parsed(channel, "a channel")?;
            route.to.push(Hop { channel, hops: line.parsed(hops, "a number of hops")? });
        }
        launch.routes.push(route);
    }
    while let Some(mut line) = lines.take("cascade") {
        launch.cascades.push(Cascade { from: line.value("a tile")?, to: line.value("a tile")? });
        line.end()?;
    }
    while let Some(mut line) = lines.take("core") {
        let tile = line.value("a tile")?;
        line.need("{")?;
        line.end()?;
        launch.cores.push(Core { tile, program: instructions(lines, 0)? });
    }
    let mut line = lines.need("run")?;
    line.need("{")?;
    line.end()?;
    launch.commands = commands(lines, 0)?;
    Ok(launch)
}

fn buffer(line: &mut FormLine<'_>) -> Result<Buffer> {
    let name = line.word("a name")?.to_owned();
    let tile = line.value("a tile")?;
    let address = address(line)?;
    let bytes = line.value("a size in bytes")?;
    line.end()?;
    Ok(Buffer { name, tile, address, bytes })
}

/// Reads an address in hex.
fn address(line: &mut FormLine<'_>) -> Result<u32> {
    let word = line.word("an address")?;
    let digits = word.strip_prefix("0x").ok_or_else(|| line.error("has an address that is not in hex"))?;
    u32::from_str_radix(digits, 16).map_err(|_| line.error(format!("has the address {word}")))
}

fn descriptor(line: &mut FormLine<'_>) -> Result<Descriptor> {
    let (tile, id, address) = (line.value("a tile")?, line.value("an id")?, line.value("an address")?);
    let dims = line.word("dimensions")?.split(',').map(|dim| line.parsed(dim, "a dimension"));
    let dims = dims.collect::<Result<_>>()?;
    let iteration = if line.skip("iteration") { Some(line.value("a dimension")?) } else { None };
    let acquire = if line.skip("acquire") { Some(lock_change(line)?) } else { None };
    let release = if line.skip("release") { Some(lock_change(line)?) } else { None };
    let next = if line.skip("next") { Some(line.value("a descriptor's id")?) } else { None };
    line.end()?;
    Ok(Descriptor { tile, id, address, dims, iteration, acquire, release, next })
}

fn lock_change(line: &mut FormLine<'_>) -> Result<LockChange> {
    let word = line.word("a lock")?;
    let lock = LockId(index(line, word, 'l')?);
    Ok(LockChange { lock, value: line.value("a lock's change")? })
}

/// Parses an index that is written as a letter and a number.
fn index(line: &FormLine<'_>, word: &str, letter: char) -> Result<u32> {
    let digits = word.strip_prefix(letter);
    let digits =
        digits.ok_or_else(|| line.error(format!("has '{word}' where {letter} and a number are needed")))?;
    line.parsed(digits, "a number")
}

/// Reads the body of a loop or a core, up to its closing brace.
fn instructions(lines: &mut FormLines<'_>, depth: usize) -> Result<Vec<CoreInstruction>> {
    let mut body = Vec::new();
    loop {
        if let Some(mut line) = lines.take("}") {
            line.end()?;
            return Ok(body);
        } else if let Some(line) = lines.take("loop") {
            let count = loop_head(line, depth)?;
            body.push(CoreInstruction::Loop { count, body: instructions(lines, depth + 1)? });
        } else if let Some(mut line) = lines.take("acquire") {
            body.push(CoreInstruction::Acquire(lock_change(&mut line)?));
            line.end()?;
        } else if let Some(mut line) = lines.take("release") {
            body.push(CoreInstruction::Release(lock_change(&mut line)?));
            line.end()?;
        } else {
            body.push(CoreInstruction::Call(call(&mut lines.need("call")?)?));
        }
    }
}

/// Reads the count of a loop, unless it is nested too deeply.
fn loop_head(mut line: FormLine<'_>, depth: usize) -> Result<u32> {
    if depth == MAX_LOOPS {
        return Err(line.error(format!("has a loop in {depth} others, which is the maximum")));
    }
    let count = line.value("a count")?;
    line.need("{")?;
    line.end()?;
    Ok(count)
}

fn call(line: &mut FormLine<'_>) -> Result<CoreCall> {
    let mut call =
        CoreCall { entry: line.word("an entry")?.to_owned(), operands: Vec::new(), parameters: Vec::new() };
    while let Some(word) = line.optional() {
        if word == ":" {
            break;
        }
        call.operands.push(operand(line, word)?);
    }
    call.parameters = parameters(line)?;
    Ok(call)
}

/// Reads the parameters at the end of a line.
pub(crate) fn parameters(line: &mut FormLine<'_>) -> Result<Vec<Parameter>> {
    let mut parameters = Vec::new();
    while let Some(word) = line.optional() {
        let (name, value) =
            word.split_once('=').ok_or_else(|| line.error(format!("has '{word}' without a value")))?;
        let value = match value.strip_suffix('f') {
            Some(float) => ParameterValue::Float(line.parsed(float, "a float")?),
            None => ParameterValue::Int(line.parsed(value, "an integer")?),
        };
        parameters.push(Parameter { name: name.to_owned(), value });
    }
    Ok(parameters)
}

fn operand(line: &FormLine<'_>, word: &str) -> Result<CallOperand> {
    let lacks = || line.error(format!("has '{word}' where an operand is needed"));
    let (slots, offset) = word.split_once('@').ok_or_else(lacks)?;
    let (slots, slot) = match slots.split_once('[') {
        Some((slots, slot)) => (slots, line.parsed(slot.strip_suffix(']').ok_or_else(lacks)?, "a slot")?),
        None => (slots, Affine::default()),
    };
    let slots = slots.split('|').map(|word| Ok(BufferId(index(line, word, 'b')?))).collect::<Result<_>>()?;
    Ok(CallOperand { slots, slot, offset: line.parsed(offset, "an offset")? })
}

/// Reads the body of a loop or of `run`, up to its closing brace.
fn commands(lines: &mut FormLines<'_>, depth: usize) -> Result<Vec<ProcessorCommand>> {
    let mut body = Vec::new();
    loop {
        if let Some(mut line) = lines.take("}") {
            line.end()?;
            return Ok(body);
        } else if let Some(line) = lines.take("loop") {
            let count = loop_head(line, depth)?;
            body.push(ProcessorCommand::Loop { count, body: commands(lines, depth + 1)? });
        } else if let Some(mut line) = lines.take("wait") {
            body.push(ProcessorCommand::Wait(line.value("a channel")?));
            line.end()?;
        } else {
            body.push(ProcessorCommand::Push(push(&mut lines.need("push")?)?));
        }
    }
}

fn push(line: &mut FormLine<'_>) -> Result<Push> {
    let (channel, descriptor) = (line.value("a channel")?, line.value("a descriptor's id")?);
    let (offset, repeats) = (line.value("an offset")?, line.value("how many repeats")?);
    let token = line.skip("token");
    line.end()?;
    Ok(Push { channel, descriptor, offset, repeats, token })
}

/// Returns the error of a word that does not parse; the reader adds the line.
fn malformed(what: &str) -> Error {
    Error::new(format!("this is not {what}"))
}

/// Parses two numbers with a separator between them.
pub(crate) fn pair<A: FromStr, B: FromStr>(text: &str, sign: char, what: &str) -> Result<(A, B)> {
    let numbers = text.split_once(sign).and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    numbers.ok_or_else(|| malformed(what))
}

impl FromStr for Tile {
    type Err = Error;

    fn from_str(text: &str) -> Result<Tile> {
        let (column, row) = pair(text, ',', "a tile")?;
        Ok(Tile { column, row })
    }
}

impl FromStr for Channel {
    type Err = Error;

    fn from_str(text: &str) -> Result<Channel> {
        let (tile, rest) = text.split_once(':').ok_or_else(|| malformed("a channel"))?;
        let (direction, number) = rest.split_once(':').ok_or_else(|| malformed("a channel"))?;
        let direction = match direction {
            "mm2s" => Direction::Mm2s,
            "s2mm" => Direction::S2mm,
            _ => return Err(malformed("a channel")),
        };
        Ok(Channel {
            tile: tile.parse()?,
            direction,
            number: number.parse().map_err(|_| malformed("a channel"))?,
        })
    }
}

impl FromStr for Dim {
    type Err = Error;

    fn from_str(text: &str) -> Result<Dim> {
        let (size, stride) = pair(text, 'x', "a dimension")?;
        Ok(Dim { size, stride })
    }
}

impl FromStr for DmaAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<DmaAddress> {
        if let Some(text) = text.strip_prefix('b') {
            let (buffer, offset) = pair(text, '+', "an address")?;
            return Ok(DmaAddress::Buffer(BufferId(buffer), offset));
        }
        let text = text.strip_prefix('a').ok_or_else(|| malformed("an address"))?;
        let (argument, offset) = pair(text, '+', "an address")?;
        Ok(DmaAddress::Argument(argument, offset))
    }
}

impl FromStr for Affine {
    type Err = Error;

    fn from_str(text: &str) -> Result<Affine> {
        let wrong = || malformed("a number that depends on loops");
        // Each sign after the first character begins a term; the constant comes first.
        let mut parts = Vec::new();
        let mut part = String::new();
        for letter in text.chars() {
            if matches!(letter, '+' | '-') && !part.is_empty() {
                parts.push(std::mem::take(&mut part));
            }
            part.write_char(letter).map_err(|_| wrong())?;
        }
        parts.push(part);
        let mut parts = parts.iter();
        let constant = parts.next().ok_or_else(wrong)?.parse().map_err(|_| wrong())?;
        let terms = parts.map(|part| {
            let (factor, depth) = part.split_once("*i").ok_or_else(wrong)?;
            let (factor, depth) = (factor.parse().map_err(|_| wrong())?, depth.parse().map_err(|_| wrong())?);
            Ok(Term { depth, factor })
        });
        Ok(Affine { constant, terms: terms.collect::<Result<_>>()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADD_SCHEDULE: &str = "\
schedule add target toy
argument 0 x input 4096
argument 1 y output 4096
launch add
  buffer 0 x.0 0,2 0x400 1024
  buffer 1 x.1 0,2 0x800 1024
  buffer 2 y 0,2 0xc00 1024
  lock 0 0,2 0 2
  lock 1 0,2 1 0
  descriptor 0,2 0 b0+0 8x64,64x1 iteration 4x16 acquire l0 2 release l1 2 next 0
  descriptor 0,0 0 a0+128 256x1
  start 0,2:s2mm:0 0 1
  route 0,0:mm2s:0 0,2:s2mm:0@2 1,2:s2mm:1@3
  cascade 0,2 0,3
  core 0,2 {
    loop 4 {
      acquire l1 1
      call add b0|b1[1+1*i0]@0 b2@0-64*i0 : n=64 epsilon=1e-5f row=0+8*i0
      release l0 1
    }
  }
  run {
    loop 2 {
      push 0,0:mm2s:0 0 0+4096*i0 1 token
    }
    wait 0,0:mm2s:0
  }
";

    #[test]
    fn a_schedule_is_read_as_it_was_printed() {
        let schedule: Schedule = ADD_SCHEDULE.parse().unwrap();
        assert_eq!(schedule.to_string(), ADD_SCHEDULE);
        assert_eq!(schedule.to_string().parse::<Schedule>().unwrap(), schedule);
        let CoreInstruction::Loop { body, .. } = &schedule.launches[0].cores[0].program[0] else {
            panic!("a loop")
        };
        let CoreInstruction::Call(call) = &body[1] else { panic!("a call") };
        assert_eq!(call.operands[0].at(&[0]), (BufferId(1), 0));
        assert_eq!(call.operands[1].at(&[3]), (BufferId(2), -192));
    }

    #[test]
    fn an_error_names_its_line() {
        let cases = [
            ("schedule", "argument", "line 2 has 'argument'; 'schedule' is needed"),
            ("lock 1 0,2", "lock 7 0,2", "line 9 has the number 7; 1 is needed"),
            ("b0+0 8x64", "c0+0 8x64", "line 10 has 'c0+0' where an address is needed"),
            ("loop 4 {", "loop 4", "line 16 lacks the word '{'"),
            ("n=64", "n", "line 18 has 'n' without a value"),
            ("    wait 0,0:mm2s:0\n  }\n", "", "the text ends; a line 'push' is needed"),
        ];
        for (from, to, want) in cases {
            let text = ADD_SCHEDULE.replacen(from, to, 1);
            let text = if from == "schedule" {
                ADD_SCHEDULE.replacen("schedule add target toy\n", "\n", 1)
            } else {
                text
            };
            assert_eq!(text.parse::<Schedule>().unwrap_err().to_string(), want);
        }
    }

    #[test]
    fn loops_that_are_nested_too_deeply_are_refused() {
        let deep = "loop 1 {\n".repeat(100_000);
        let text = format!("schedule a target b\nlaunch c\nrun {{\n{deep}");
        let error = text.parse::<Schedule>().unwrap_err().to_string();
        assert_eq!(error, "line 12 has a loop in 8 others, which is the maximum");
    }
}
