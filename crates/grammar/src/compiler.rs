//! From a grammar's text to the constraint of a reply.

use std::sync::Arc;

use girih_tensor::{Error, Result};
use girih_words::Tokenizer;
use girih_words::reply::CallGrammar;
use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::InferenceCapabilities;
use llguidance::{Logger, ParserFactory, TokenParser};
use regex_automata::meta;

use crate::constraint::GrammarConstraint;
use crate::deep_stack::on_deep_stack;
use crate::finished::FinishedCheck;
use crate::gbnf::{WrittenGbnf, translated};
use crate::limits::{MAX_LARK_ITEMS, check_choice, check_lark, refused};
use crate::mask_thread::{MaskThread, first_line};
use crate::pattern::check_pattern;
use crate::schema;
use crate::vocabulary::token_bytes;

/// What a reply must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grammar {
    /// JSON that this JSON Schema (draft 7 or 2020-12) accepts.
    JsonSchema(String),
    /// Any JSON object.
    JsonObject,
    /// A text that this regular expression matches as a whole, in the syntax of the crate
    /// `regex`.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A text of this context-free grammar, in llguidance's variant of the syntax of Lark.
    Lark(String),
    /// A text of this grammar, in the syntax of llama.cpp (GBNF).
    Gbnf(String),
    /// A call of a tool, whose arguments its JSON Schema accepts.
    Call(CallGrammar),
}

impl Grammar {
    /// The grammar of a text in one of two syntaxes: GBNF if a line begins with a name and `::=`, else Lark.
    pub fn of_text(text: String) -> Grammar {
        let is_name =
            |name: &str| !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || "-_".contains(c));
        let begins_rule = |line: &str| line.split_once("::=").is_some_and(|(name, _)| is_name(name.trim()));
        if text.lines().any(begins_rule) { Grammar::Gbnf(text) } else { Grammar::Lark(text) }
    }
}

/// The maximum number of states of a reply's lexer, each of 1 to 2 KB: at most 40 MB for a reply.
const MAX_LEXER_STATES: usize = 20_000;

/// Compiles grammars for one tokenizer.
pub struct GrammarCompiler {
    factory: ParserFactory,
    stop_tokens: Vec<u32>,
    masks: MaskThread,
}

impl GrammarCompiler {
    /// A compiler for replies in this tokenizer's tokens. A reply may end with one of
    /// `stop_tokens` where it is complete.
    ///
    /// # Errors
    /// When the thread that computes masks cannot be started.
    pub fn new(tokenizer: &Tokenizer, stop_tokens: &[u32]) -> Result<GrammarCompiler> {
        let vocabulary = token_bytes(tokenizer, stop_tokens);
        let slices = SlicedBiasComputer::json_slices();
        let factory = ParserFactory::new(&vocabulary, InferenceCapabilities::default(), &slices);
        let mut factory = factory
            .map_err(|error| Error::new(format!("the vocabulary cannot be used: {}", first_line(&error))))?;
        factory.limits_mut().verbose_errors = false;
        factory.limits_mut().max_lexer_states = MAX_LEXER_STATES;
        Ok(GrammarCompiler { factory, stop_tokens: stop_tokens.to_vec(), masks: MaskThread::start()? })
    }

    /// Compiles a grammar, and begins to compute the mask of the first token.
    ///
    /// # Errors
    /// Of the kind [`ErrorKind::Refused`](girih_tensor::ErrorKind::Refused) when the grammar is malformed,
    /// exceeds a limit, or has something that is not supported; names it.
    pub fn compile(&self, grammar: &Grammar) -> Result<GrammarConstraint> {
        Ok(self.compile_several(grammar, 1)?.pop().expect("one was asked for"))
    }

    /// As [`GrammarCompiler::compile`], for several replies: the grammar is compiled once.
    ///
    /// # Errors
    /// As [`GrammarCompiler::compile`].
    pub fn compile_several(&self, grammar: &Grammar, count: u32) -> Result<Vec<GrammarConstraint>> {
        let (parser, check) = on_deep_stack(|| {
            let (init, check) = self.parts(grammar)?;
            Ok((self.parser(init)?, Arc::new(check)))
        })?;
        let constraint = |_| {
            // A shared lexer would make the states that one reply may have depend on the others.
            let (parser, check) = (Box::new(parser.deep_clone()), Arc::clone(&check));
            GrammarConstraint::new(parser, self.masks.clone(), self.stop_tokens.clone(), check)
        };
        Ok((0..count).map(constraint).collect())
    }

    /// The grammar for llguidance, and the check of finished replies.
    fn parts(&self, grammar: &Grammar) -> Result<(GrammarInit, FinishedCheck)> {
        match grammar {
            Grammar::Regex(pattern) => {
                check_pattern(pattern)?;
                let expression = meta::Regex::new(&format!("(?:{pattern})\\z"));
                let expression = expression.map_err(|error| {
                    refused(format!("the regular expression is too large: {}", first_line(&error)))
                })?;
                let init = GrammarInit::Serialized(TopLevelGrammar::from_regex(pattern));
                Ok((init, FinishedCheck::Pattern(Box::new(expression))))
            }
            Grammar::Choice(texts) => {
                check_choice(texts)?;
                let escaped: Vec<String> = texts.iter().map(|text| regex_syntax::escape(text)).collect();
                let init = GrammarInit::Serialized(TopLevelGrammar::from_regex(&escaped.join("|")));
                Ok((init, FinishedCheck::Choice(texts.clone())))
            }
            Grammar::Lark(text) => {
                check_lark(text)?;
                let init = GrammarInit::Serialized(TopLevelGrammar::from_lark(text.clone()));
                Ok((init, FinishedCheck::Text))
            }
            Grammar::Gbnf(text) => match translated(text)? {
                WrittenGbnf::Pattern(pattern) => self.parts(&Grammar::Regex(pattern)),
                WrittenGbnf::Lark(text) => {
                    let init = GrammarInit::Serialized(TopLevelGrammar::from_lark(text));
                    Ok((init, FinishedCheck::Text))
                }
            },
            Grammar::JsonObject => self.parts(&Grammar::JsonSchema(r#"{"type": "object"}"#.to_owned())),
            Grammar::Call(grammar) => {
                let (init, check) = schema::compile_call(grammar)?;
                Ok((init, FinishedCheck::Call(check)))
            }
            Grammar::JsonSchema(text) => {
                let (init, check) = schema::compile(text)?;
                Ok((init, FinishedCheck::Schema(Box::new(check))))
            }
        }
    }

    fn parser(&self, init: GrammarInit) -> Result<TokenParser> {
        let mut limits = self.factory.limits().clone();
        // Schemas have their own grammars, which are wide but hardly ambiguous.
        if matches!(init, GrammarInit::Serialized(_)) {
            limits.max_items_in_row = MAX_LARK_ITEMS;
        }
        let (logger, capabilities) = (Logger::new(0, 0), InferenceCapabilities::default());
        let mut parser = self
            .factory
            .create_parser_from_init_ext(init, logger, capabilities, limits)
            .map_err(|error| refused(format!("the grammar is not supported: {}", first_line(&error))))?;
        parser.start_without_prompt();
        Ok(parser)
    }

    /// The bounds on the work of a grammar.
    pub fn limits(&self) -> &ParserLimits {
        self.factory.limits()
    }
}
