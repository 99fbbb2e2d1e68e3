//! The text of tiled programs: printing and reading.

use std::fmt;
use std::str::FromStr;

use girih_tensor::{Error, Result};

use super::{Flow, Herd, Item, L2Staging, Local, Share, Stream, Tiled, TiledLaunch, TiledOperand};
use crate::form::read::{FormLine, FormLines};
use crate::form::schedule::Dim;
use crate::form::schedule::text::{MAX_LOOPS, arguments, loop_head, pair, parameters, print_arguments};
use crate::form::sweep::sweep;

impl fmt::Display for Herd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.columns, self.rows)
    }
}

impl fmt::Display for Tiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "tiled {}", self.name)?;
        print_arguments(&self.arguments, f)?;
        self.launches.iter().try_for_each(|launch| write!(f, "{launch}"))
    }
}

impl fmt::Display for TiledLaunch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cascade = if self.cascade { " cascade" } else { "" };
        let flat = if self.flat { " flat" } else { "" };
        write!(f, "launch {} herd {}{flat}{cascade}", self.name, self.herd)?;
        self.resident.iter().try_for_each(|origin| write!(f, " resident {origin}"))?;
        writeln!(f)?;
        self.streams.iter().try_for_each(|stream| writeln!(f, "  {stream}"))?;
        self.sweeps.iter().try_for_each(|sweep| writeln!(f, "  sweep {sweep}"))?;
        for Local { name, bytes } in &self.locals {
            writeln!(f, "  local {name} {bytes}")?;
        }
        writeln!(f, "  body {{")?;
        self.body.iter().try_for_each(|item| print_item(item, 2, f))?;
        writeln!(f, "  }}")
    }
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stream { name, argument, level, depth, base_bytes, column_bytes, row_bytes, .. } = self;
        let flow = if self.flow == Flow::In { "in" } else { "out" };
        let share = SHARES.iter().find(|(share, _)| *share == self.share).map_or("?", |(_, word)| word);
        write!(f, "stream {name} {flow} a{argument} share {share} level {level} depth {depth}")?;
        write!(f, " base {base_bytes} column {column_bytes} row {row_bytes} dims {}", Dims(&self.dims))?;
        if let Some(host) = &self.ahead_of {
            write!(f, " ahead {host}")?;
        }
        let Some(staging) = &self.l2 else { return Ok(()) };
        let L2Staging { depth, slices, slice_words, passes, into, dims } = staging;
        write!(f, " through {depth} slices {slices} {slice_words} dims {}", Dims(dims))?;
        if staging.repeats() {
            write!(f, " passes {passes}")?;
        }
        if into.is_empty() { Ok(()) } else { write!(f, " into {}", Dims(into)) }
    }
}

const SHARES: [(Share, &str); 6] = [
    (Share::Own, "own"),
    (Share::Column, "column"),
    (Share::Row, "row"),
    (Share::All, "all"),
    (Share::Bottom, "bottom"),
    (Share::Top, "top"),
];

/// Prints dimensions, separated by commas.
struct Dims<'a>(&'a [Dim]);

impl fmt::Display for Dims<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        self.0.iter().try_for_each(|dim| write!(f, "{}{dim}", std::mem::replace(&mut separator, ",")))
    }
}

fn print_item(item: &Item, depth: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{:1$}", "", 2 * depth)?;
    match item {
        Item::Loop { count, body } => {
            writeln!(f, "loop {count} {{")?;
            body.iter().try_for_each(|inner| print_item(inner, depth + 1, f))?;
            writeln!(f, "{:1$}}}", "", 2 * depth)
        }
        Item::On { first, last, body } => {
            writeln!(f, "on {first} {last} {{")?;
            body.iter().try_for_each(|inner| print_item(inner, depth + 1, f))?;
            writeln!(f, "{:1$}}}", "", 2 * depth)
        }
        Item::Call { entry, operands, parameters } => {
            write!(f, "call {entry}")?;
            operands.iter().try_for_each(|TiledOperand { name, offset }| write!(f, " {name}@{offset}"))?;
            if !parameters.is_empty() {
                f.write_str(" :")?;
            }
            parameters.iter().try_for_each(|parameter| write!(f, " {parameter}"))?;
            writeln!(f)
        }
    }
}

impl FromStr for Tiled {
    type Err = Error;

    fn from_str(text: &str) -> Result<Tiled> {
        let mut lines = FormLines::new(text);
        let mut head = lines.need("tiled")?;
        let name = head.word("the program's name")?.to_owned();
        head.end()?;
        let arguments = arguments(&mut lines)?;
        let mut launches = Vec::new();
        while lines.peek() == Some("launch") {
            launches.push(TiledLaunch::read(&mut lines)?);
        }
        lines.end()?;
        Ok(Tiled { name, arguments, launches })
    }
}

impl TiledLaunch {
    /// Reads a launch from its first line to the end of its body.
    pub(in crate::form) fn read(lines: &mut FormLines<'_>) -> Result<TiledLaunch> {
        let mut head = lines.need("launch")?;
        let name = head.word("the launch's name")?.to_owned();
        head.need("herd")?;
        let herd = head.value("a herd")?;
        let flat = head.skip("flat");
        let cascade = head.skip("cascade");
        let resident = if head.skip("resident") { Some(head.value("a tile")?) } else { None };
        head.end()?;
        let (streams, sweeps, locals, body) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut launch = TiledLaunch { name, herd, flat, streams, sweeps, locals, cascade, resident, body };
        while let Some(mut line) = lines.take("stream") {
            launch.streams.push(stream(&mut line)?);
        }
        while let Some(line) = lines.take("sweep") {
            launch.sweeps.push(sweep(line)?);
        }
        while let Some(mut line) = lines.take("local") {
            let name = line.word("a name")?.to_owned();
            launch.locals.push(Local { name, bytes: line.value("a size in bytes")? });
            line.end()?;
        }
        let mut line = lines.need("body")?;
        line.need("{")?;
        line.end()?;
        launch.body = items(lines, 0)?;
        Ok(launch)
    }
}

fn stream(line: &mut FormLine<'_>) -> Result<Stream> {
    let name = line.word("a name")?.to_owned();
    let flow = match line.word("a direction")? {
        "in" => Flow::In,
        "out" => Flow::Out,
        word => return Err(line.error(format!("has '{word}' where in or out is needed"))),
    };
    let word = line.word("an argument")?;
    let number = word
        .strip_prefix('a')
        .ok_or_else(|| line.error(format!("has '{word}', which is not an argument")))?;
    let argument = line.parsed(number, "an argument's number")?;
    line.need("share")?;
    let word = line.word("a share")?;
    let share = SHARES.iter().find(|(_, name)| *name == word).map(|(share, _)| *share);
    let share = share.ok_or_else(|| {
        line.error(format!("has '{word}' where own, column, row, all, bottom or top is needed"))
    })?;
    line.need("level")?;
    let level = line.value("a number of loops")?;
    line.need("depth")?;
    let depth = line.value("a number of chunks")?;
    line.need("base")?;
    let base_bytes = line.value("a number of bytes")?;
    line.need("column")?;
    let column_bytes = line.value("a number of bytes")?;
    line.need("row")?;
    let row_bytes = line.value("a number of bytes")?;
    line.need("dims")?;
    let dims = dims(line)?;
    let ahead_of = if line.skip("ahead") { Some(line.word("a stream's name")?.to_owned()) } else { None };
    let l2 = if line.skip("through") {
        let depth = line.value("a number of transfers")?;
        line.need("slices")?;
        let (slices, slice_words) = (line.value("a number of slices")?, line.value("words of a slice")?);
        line.need("dims")?;
        let dims = self::dims(line)?;
        let passes = if line.skip("passes") { line.value("a number of passes")? } else { 1 };
        let into = if line.skip("into") { self::dims(line)? } else { Vec::new() };
        Some(L2Staging { depth, slices, slice_words, passes, into, dims })
    } else {
        None
    };
    line.end()?;
    Ok(Stream {
        name,
        argument,
        flow,
        share,
        level,
        depth,
        base_bytes,
        column_bytes,
        row_bytes,
        dims,
        ahead_of,
        l2,
    })
}

/// Reads dimensions separated by commas; none may have the size 0.
fn dims(line: &mut FormLine<'_>) -> Result<Vec<Dim>> {
    let word = line.word("dimensions")?;
    let dims: Vec<Dim> = word.split(',').map(|dim| line.parsed(dim, "a dimension")).collect::<Result<_>>()?;
    match dims.iter().find(|dim| dim.size == 0) {
        Some(_) => Err(line.error("has a dimension of size 0")),
        None => Ok(dims),
    }
}

fn items(lines: &mut FormLines<'_>, depth: usize) -> Result<Vec<Item>> {
    let mut body = Vec::new();
    loop {
        if let Some(mut line) = lines.take("}") {
            line.end()?;
            return Ok(body);
        } else if let Some(line) = lines.take("loop") {
            let count = loop_head(line, depth)?;
            body.push(Item::Loop { count, body: items(lines, depth + 1)? });
        } else if let Some(line) = lines.take("on") {
            let (first, last) = rows(line, depth)?;
            body.push(Item::On { first, last, body: items(lines, depth + 1)? });
        } else {
            let mut line = lines.need("call")?;
            let entry = line.word("an entry")?.to_owned();
            let mut operands = Vec::new();
            while let Some(word) = line.optional() {
                if word == ":" {
                    break;
                }
                let parts = word.split_once('@');
                let (name, offset) =
                    parts.ok_or_else(|| line.error(format!("has '{word}', which is not an operand")))?;
                operands
                    .push(TiledOperand { name: name.to_owned(), offset: line.parsed(offset, "an offset")? });
            }
            body.push(Item::Call { entry, operands, parameters: parameters(&mut line)? });
        }
    }
}

/// Reads the rows of an `on` body, unless it is nested too deeply.
fn rows(mut line: FormLine<'_>, depth: usize) -> Result<(u8, u8)> {
    if depth == MAX_LOOPS {
        return Err(line.error(format!("is nested in {depth} others, which is the maximum")));
    }
    let rows = (line.value("a row")?, line.value("a row")?);
    line.need("{")?;
    line.end()?;
    Ok(rows)
}

impl FromStr for Herd {
    type Err = Error;

    fn from_str(text: &str) -> Result<Herd> {
        match pair(text, 'x', "a herd")? {
            (columns, rows) if columns > 0 && rows > 0 => Ok(Herd { columns, rows }),
            _ => Err(Error::new(format!("'{text}' is not a herd"))),
        }
    }
}
