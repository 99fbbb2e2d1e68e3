//! Writes a grammar as a regular expression, or in Lark.

use std::fmt::Write as _;

use super::grammar::{Alternatives, GbnfGrammar, GbnfItem, GbnfPiece, WrittenGbnf};
use crate::limits::MAX_PATTERN_BYTES;
use crate::pattern::check_pattern;

/// Writes a grammar: as an expression if it is not recursive and the expression is small enough.
pub(super) fn written(grammar: &GbnfGrammar) -> WrittenGbnf {
    if !is_recursive(grammar) {
        let mut pattern = PatternWriter { grammar, out: String::new() };
        pattern.alternatives(&grammar.rules[grammar.root]);
        if check_pattern(&pattern.out).is_ok() {
            return WrittenGbnf::Pattern(pattern.out);
        }
    }
    WrittenGbnf::Lark(lark(grammar))
}

/// Whether a rule describes texts with texts of its own in them.
fn is_recursive(grammar: &GbnfGrammar) -> bool {
    let uses: Vec<Vec<usize>> = grammar.rules.iter().map(rules_in).collect();
    // Rules are removed that use none that is left; those of a cycle stay.
    let mut waiting: Vec<usize> = uses.iter().map(Vec::len).collect();
    let mut users = vec![Vec::new(); uses.len()];
    for (user, used) in uses.iter().enumerate() {
        used.iter().for_each(|used| users[*used].push(user));
    }
    let mut free: Vec<usize> = (0..uses.len()).filter(|rule| waiting[*rule] == 0).collect();
    let mut removed = 0;
    while let Some(rule) = free.pop() {
        removed += 1;
        for user in &users[rule] {
            waiting[*user] -= 1;
            if waiting[*user] == 0 {
                free.push(*user);
            }
        }
    }
    removed < uses.len()
}

/// The rules that stand in alternatives, as often as they stand there.
fn rules_in(alternatives: &Alternatives) -> Vec<usize> {
    let mut rules = Vec::new();
    for item in alternatives.iter().flatten() {
        match &item.piece {
            GbnfPiece::Rule(number) => rules.push(*number),
            GbnfPiece::Group(inner) => rules.extend(rules_in(inner)),
            GbnfPiece::Text(_) | GbnfPiece::Class { .. } => {}
        }
    }
    rules
}

/// A class of characters in the syntax of the crate `regex`.
fn class(is_negated: bool, ranges: &[(char, char)]) -> String {
    if ranges.is_empty() {
        return r"[\x{0}-\x{10FFFF}]".to_owned();
    }
    let mut out = String::from(if is_negated { "[^" } else { "[" });
    for (first, last) in ranges {
        out.push_str(&character(*first));
        if first != last {
            let _ = write!(out, "-{}", character(*last));
        }
    }
    out + "]"
}

fn character(c: char) -> String {
    format!("\\x{{{:X}}}", u32::from(c))
}

/// An expression on its way.
struct PatternWriter<'a> {
    grammar: &'a GbnfGrammar,
    out: String,
}

impl PatternWriter<'_> {
    /// Whether the expression is too long already; rules that stand in others several times multiply.
    fn is_full(&self) -> bool {
        self.out.len() > MAX_PATTERN_BYTES
    }

    fn alternatives(&mut self, alternatives: &Alternatives) {
        for (number, sequence) in alternatives.iter().enumerate() {
            if number > 0 {
                self.out.push('|');
            }
            for item in sequence {
                if self.is_full() {
                    return;
                }
                self.item(item);
            }
        }
    }

    fn item(&mut self, item: &GbnfItem) {
        let repeats = (item.min, item.max) != (1, Some(1));
        let is_open = repeats || matches!(item.piece, GbnfPiece::Rule(_) | GbnfPiece::Group(_));
        if is_open {
            self.out.push_str("(?:");
        }
        match &item.piece {
            GbnfPiece::Text(text) => text.chars().for_each(|c| self.out.push_str(&character(c))),
            GbnfPiece::Class { is_negated, ranges } => self.out.push_str(&class(*is_negated, ranges)),
            GbnfPiece::Rule(number) => {
                let grammar = self.grammar;
                self.alternatives(&grammar.rules[*number]);
            }
            GbnfPiece::Group(inner) => self.alternatives(inner),
        }
        if is_open {
            self.out.push(')');
        }
        if repeats {
            self.out.push_str(&counts(item));
        }
    }
}

/// What follows an item that is repeated.
fn counts(item: &GbnfItem) -> String {
    match (item.min, item.max) {
        (0, None) => "*".to_owned(),
        (1, None) => "+".to_owned(),
        (0, Some(1)) => "?".to_owned(),
        (min, None) => format!("{{{min},}}"),
        (min, Some(max)) => format!("{{{min},{max}}}"),
    }
}

/// The grammar in Lark: each lexeme is one character.
fn lark(grammar: &GbnfGrammar) -> String {
    let mut out = format!("start: r{}\n", grammar.root);
    for (number, rule) in grammar.rules.iter().enumerate() {
        let _ = write!(out, "r{number}: ");
        lark_alternatives(rule, &mut out, false);
        out.push('\n');
    }
    out
}

/// Writes alternatives, in brackets if they stand in a sequence.
fn lark_alternatives(alternatives: &Alternatives, out: &mut String, in_sequence: bool) {
    let full: Vec<&Vec<GbnfItem>> = alternatives.iter().filter(|sequence| !is_blank(sequence)).collect();
    if full.is_empty() {
        out.push_str("\"\"");
        return;
    }
    let may_be_blank = full.len() < alternatives.len();
    let has_brackets = in_sequence || may_be_blank;
    if has_brackets {
        out.push('(');
    }
    for (number, sequence) in full.into_iter().enumerate() {
        if number > 0 {
            out.push('|');
        }
        for (place, item) in sequence.iter().enumerate() {
            if place > 0 {
                out.push(' ');
            }
            lark_item(item, out);
        }
    }
    if has_brackets {
        out.push(')');
    }
    if may_be_blank {
        out.push('?');
    }
}

/// Whether a sequence has no characters.
fn is_blank(sequence: &[GbnfItem]) -> bool {
    sequence.iter().all(|item| match &item.piece {
        GbnfPiece::Text(text) => text.is_empty(),
        GbnfPiece::Group(inner) => inner.iter().all(|sequence| is_blank(sequence)),
        GbnfPiece::Class { .. } | GbnfPiece::Rule(_) => item.max == Some(0),
    })
}

fn lark_item(item: &GbnfItem, out: &mut String) {
    let repeats = (item.min, item.max) != (1, Some(1));
    let is_bracketed = repeats && !matches!(item.piece, GbnfPiece::Rule(_) | GbnfPiece::Class { .. });
    if is_bracketed {
        out.push('(');
    }
    match &item.piece {
        GbnfPiece::Text(text) if text.is_empty() => out.push_str("\"\""),
        GbnfPiece::Text(text) => {
            let lexemes: Vec<String> = text.chars().map(|c| format!("/{}/", character(c))).collect();
            out.push_str(&lexemes.join(" "));
        }
        GbnfPiece::Class { is_negated, ranges } => {
            let _ = write!(out, "/{}/", class(*is_negated, ranges));
        }
        GbnfPiece::Rule(number) => {
            let _ = write!(out, "r{number}");
        }
        GbnfPiece::Group(inner) => lark_alternatives(inner, out, true),
    }
    if is_bracketed {
        out.push(')');
    }
    if repeats {
        out.push_str(&counts(item));
    }
}
