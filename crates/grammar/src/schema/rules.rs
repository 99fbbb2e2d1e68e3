//! The rules of a context-free grammar whose terminals are expressions over JSON's texts.

use std::collections::HashMap;

use girih_tensor::{Error, Result};
use llguidance::api::{GenGrammarOptions, GrammarId, GrammarInit, SkipSpec};
use llguidance::derivre::{JsonQuoteOptions, RegexAst};
use llguidance::earley::lexerspec::{LexemeClass, LexemeIdx, LexerSpec};
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

/// The white space between terminals.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Spaces {
    /// As between the parts of JSON.
    Json,
    /// None.
    Never,
}

impl Spaces {
    fn skip(self) -> SkipSpec {
        match self {
            Spaces::Json => SkipSpec::once(regex(WHITE_SPACE)),
            Spaces::Never => SkipSpec::unbounded(RegexAst::NoMatch),
        }
    }
}

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
    pub fn new(expander: Expander<'a>, spaces: Spaces) -> Result<RuleWriter<'a>> {
        let mut lexer = LexerSpec::new().map_err(|error| too_complex(&error))?;
        let class = lexer.setup_lexeme_class_with_skip(spaces.skip()).map_err(|error| too_complex(&error))?;
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

    /// Decides where the next terminals allow white space between them.
    pub fn set_spaces(&mut self, spaces: Spaces) -> Result<()> {
        let class = self.lexer.setup_lexeme_class_with_skip(spaces.skip());
        self.class = class.map_err(|error| too_complex(&error))?;
        Ok(())
    }

    /// Goes on with another schema. All values of the one before have been written.
    pub fn set_expander(&mut self, expander: Expander<'a>) {
        self.expander = expander;
        self.values.clear();
    }

    /// A new start symbol: all texts of the grammar are derived from it. It must be the first symbol.
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
    /// When no text is derived from one of the `needed` symbols: `contradiction` of its number.
    pub fn finish(
        mut self,
        needed: &[SymIdx],
        contradiction: impl Fn(usize) -> Error,
    ) -> Result<GrammarInit> {
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
        if let Some(number) = needed.iter().position(|symbol| !is_productive[symbol.as_usize()]) {
            return Err(contradiction(number));
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

    /// A new symbol for the texts of `inner`, whose white space is decided on its own. The names
    /// of such symbols differ.
    pub fn nested(&mut self, name: &str, inner: SymIdx) -> Result<SymIdx> {
        let symbol = self.symbol(name)?;
        let options = GenGrammarOptions { grammar: GrammarId::Name(name.to_owned()), temperature: None };
        self.grammar.make_gen_grammar(symbol, options).map_err(|error| too_complex(&error))?;
        // The parser wants one rule of one symbol here, so this symbol must not be inlined.
        self.grammar.sym_props_mut(inner).is_start = true;
        self.rule(symbol, vec![inner]);
        Ok(symbol)
    }

    /// The symbol of a special token.
    pub fn special_token(&mut self, id: u32) -> Result<SymIdx> {
        let lexeme = self.lexer.add_special_token(format!("<[{id}]>"), vec![id..=id]);
        self.lexeme(lexeme.map_err(|error| too_complex(&error))?)
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
        self.lexeme(lexeme)
    }

    fn lexeme(&mut self, lexeme: LexemeIdx) -> Result<SymIdx> {
        let symbol = self.symbol("text")?;
        self.grammar.make_terminal(symbol, lexeme, &self.lexer).map_err(|error| too_complex(&error))?;
        self.terminals[symbol.as_usize()] = true;
        Ok(symbol)
    }

    /// The symbol of the values for which all claims hold; `None` if one of them never holds.
    pub fn value(&mut self, claims: &[Claim]) -> Result<Option<SymIdx>> {
        let Some(kept) = self.undecided(claims)? else { return Ok(None) };
        if let Some(symbol) = self.values.get(&kept) {
            return Ok(Some(*symbol));
        }
        let symbol = self.symbol("value")?;
        self.values.insert(kept.clone(), symbol);
        self.pending.push((kept, symbol));
        Ok(Some(symbol))
    }

    /// The claims, in order, without those that always hold; `None` if one never holds.
    pub fn undecided(&self, claims: &[Claim]) -> Result<Option<Vec<Claim>>> {
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
        Ok(Some(kept))
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
