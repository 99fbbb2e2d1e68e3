//! The rules of a context-free grammar whose terminals are expressions over JSON's texts.

use std::collections::HashMap;

use girih_tensor::{Error, Result};
use llguidance::api::{GrammarInit, SkipSpec};
use llguidance::derivre::{JsonQuoteOptions, RegexAst};
use llguidance::earley::lexerspec::{LexemeClass, LexerSpec};
use llguidance::earley::{Grammar, SymIdx, SymbolProps};

use super::expand::Expander;
use super::number::{is_empty_regex, regex};
use super::shape::Claim;
use crate::limits::refused;
use crate::mask_thread::first_line;

/// The maximum number of symbols of a grammar; the crate numbers them in 16 bits.
const MAX_SYMBOLS: usize = 40_000;

/// White space between the parts of JSON: at most one space, because small models that may write
/// more tend to write only white space.
const WHITE_SPACE: &str = r"\x20";

/// A grammar that is being written.
pub(crate) struct RuleWriter<'a> {
    pub expander: Expander<'a>,
    grammar: Grammar,
    lexer: LexerSpec,
    class: LexemeClass,
    rules: Vec<(SymIdx, Vec<SymIdx>)>,
    /// Which symbols are terminals.
    terminals: Vec<bool>,
    literals: HashMap<String, SymIdx>,
    values: HashMap<Vec<Claim>, SymIdx>,
    pending: Vec<(Vec<Claim>, SymIdx)>,
}

impl<'a> RuleWriter<'a> {
    /// A writer without rules.
    ///
    /// # Errors
    /// When the lexer refuses the white space.
    pub fn new(expander: Expander<'a>) -> Result<RuleWriter<'a>> {
        let mut lexer = LexerSpec::new().map_err(|error| too_complex(&error))?;
        let skip = SkipSpec::once(regex(WHITE_SPACE));
        let class = lexer.setup_lexeme_class_with_skip(skip).map_err(|error| too_complex(&error))?;
        Ok(RuleWriter {
            expander,
            grammar: Grammar::new(None),
            lexer,
            class,
            rules: Vec::new(),
            terminals: Vec::new(),
            literals: HashMap::new(),
            values: HashMap::new(),
            pending: Vec::new(),
        })
    }

    /// A new symbol of which all texts of the grammar are derived; the first symbol.
    pub fn start(&mut self) -> Result<SymIdx> {
        let start = self.symbol("start")?;
        self.grammar.sym_props_mut(start).is_start = true;
        Ok(start)
    }

    /// A value whose rules are not written yet.
    pub fn take_pending(&mut self) -> Option<(Vec<Claim>, SymIdx)> {
        self.pending.pop()
    }

    /// Adds the rules that lead to texts, and returns the grammar.
    ///
    /// # Errors
    /// When no text is derived.
    pub fn finish(mut self, start: SymIdx) -> Result<GrammarInit> {
        let mut is_productive = self.terminals.clone();
        let mut waiting: HashMap<SymIdx, Vec<usize>> = HashMap::new();
        let mut missing: Vec<usize> = Vec::with_capacity(self.rules.len());
        let mut found: Vec<SymIdx> = Vec::new();
        for (at, (left, right)) in self.rules.iter().enumerate() {
            let open: Vec<SymIdx> =
                right.iter().copied().filter(|symbol| !self.terminals[symbol.as_usize()]).collect();
            missing.push(open.len());
            if open.is_empty() {
                found.push(*left);
            }
            open.into_iter().for_each(|symbol| waiting.entry(symbol).or_default().push(at));
        }
        while let Some(symbol) = found.pop() {
            if std::mem::replace(&mut is_productive[symbol.as_usize()], true) {
                continue;
            }
            for rule in waiting.remove(&symbol).unwrap_or_default() {
                missing[rule] -= 1;
                if missing[rule] == 0 {
                    found.push(self.rules[rule].0);
                }
            }
        }
        if !is_productive[start.as_usize()] {
            return Err(refused("no JSON satisfies the schema: its keywords contradict each other"));
        }
        for (rule, (left, right)) in std::mem::take(&mut self.rules).into_iter().enumerate() {
            if missing[rule] == 0 {
                self.grammar.add_rule(left, right).map_err(|error| too_complex(&error))?;
            }
        }
        Ok(GrammarInit::Internal(self.grammar, self.lexer))
    }

    /// A new symbol.
    pub fn symbol(&mut self, name: &str) -> Result<SymIdx> {
        if self.terminals.len() >= MAX_SYMBOLS {
            return Err(refused(format!(
                "the schema's grammar has more than {MAX_SYMBOLS} symbols: simplify it"
            )));
        }
        let props = SymbolProps { grammar_id: self.class, ..SymbolProps::default() };
        let symbol = self.grammar.fresh_symbol_ext(name, props);
        self.terminals.resize(symbol.as_usize() + 1, false);
        Ok(symbol)
    }

    /// Adds a rule.
    pub fn rule(&mut self, left: SymIdx, right: Vec<SymIdx>) {
        self.rules.push((left, right));
    }

    /// The symbol of a punctuation mark.
    pub fn literal(&mut self, text: &str) -> Result<SymIdx> {
        if let Some(symbol) = self.literals.get(text) {
            return Ok(*symbol);
        }
        let symbol = self.terminal(RegexAst::Literal(text.to_owned()))?;
        self.literals.insert(text.to_owned(), symbol);
        Ok(symbol)
    }

    /// The symbol of an expression that matches some text.
    pub fn terminal(&mut self, ast: RegexAst) -> Result<SymIdx> {
        let lexeme = self
            .lexer
            .add_greedy_lexeme(String::new(), ast, false, None, usize::MAX)
            .map_err(|error| too_complex(&error))?;
        let symbol = self.symbol("text")?;
        self.grammar.make_terminal(symbol, lexeme, &self.lexer).map_err(|error| too_complex(&error))?;
        self.terminals[symbol.as_usize()] = true;
        Ok(symbol)
    }

    /// The symbol of the values for which all claims hold; `None` if one of them never holds.
    pub fn value(&mut self, claims: &[Claim]) -> Result<Option<SymIdx>> {
        let mut kept = Vec::new();
        for claim in claims {
            match &*self.expander.document.node(claim.node)? {
                super::document::SchemaNode::Always(always) if *always == claim.holds => {}
                super::document::SchemaNode::Always(_) => return Ok(None),
                super::document::SchemaNode::Keywords(_) => kept.push(*claim),
            }
        }
        kept.sort_unstable();
        kept.dedup();
        if let Some(symbol) = self.values.get(&kept) {
            return Ok(Some(*symbol));
        }
        let symbol = self.symbol("value")?;
        self.values.insert(kept.clone(), symbol);
        self.pending.push((kept, symbol));
        Ok(Some(symbol))
    }
}

/// The texts that match all parts.
pub(crate) fn text_of(parts: &[RegexAst]) -> RegexAst {
    let any = regex("(?s:.*)");
    match parts {
        [] => any,
        [one @ RegexAst::Literal(_)] => one.clone(),
        parts => RegexAst::And([vec![any], parts.to_vec()].concat()),
    }
}

/// An expression, unless it matches no text.
///
/// # Errors
/// When that cannot be decided within the bounds.
pub(crate) fn some_text(ast: RegexAst) -> Result<Option<RegexAst>> {
    match is_empty_regex(&ast) {
        Some(is_empty) => Ok((!is_empty).then_some(ast)),
        None => Err(refused(
            "a string or number of the schema is restricted in a way that is too complex: simplify its pattern, multipleOf or bounds",
        )),
    }
}

/// The texts of an expression as strings of JSON.
pub(crate) fn quoted(ast: RegexAst) -> RegexAst {
    RegexAst::JsonQuote(Box::new(ast), JsonQuoteOptions::regular())
}

fn too_complex(error: &dyn std::fmt::Display) -> Error {
    refused(format!("the schema is too complex: {}", first_line(error)))
}
