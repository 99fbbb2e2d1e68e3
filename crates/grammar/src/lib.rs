//! Structured output: JSON Schema, any JSON object, regular expressions and Lark grammars as
//! constraints on a reply's tokens.
//!
//! A [`GrammarCompiler`] belongs to one tokenizer. It makes a [`GrammarConstraint`] from a
//! [`Grammar`], which the engine calls while the request runs. llguidance computes the masks, on
//! a thread of its own, so that the mask of the next token is ready when its logits are.
//!
//! - **Nothing is ignored.** A keyword of JSON Schema that the compiler does not enforce is
//!   refused by name: `docs/structured-output.md` lists them.
//! - **A complete reply was validated**, by code that shares nothing with the grammar: a schema's
//!   by a validator of its own ([`SchemaValidator`]), a regular expression's by `regex-automata`. A mismatch is an error.
//! - **Input is bounded before it is parsed**: its bytes, its nesting and the work of compiling
//!   it ([`limits`]). A panic inside a dependency becomes an error of the request.
#![forbid(unsafe_code)]

mod compiler;
mod constraint;
mod deep_stack;
mod finished;
#[doc(hidden)]
pub mod fuzz;
mod gbnf;
pub mod limits;
mod mask_thread;
mod pattern;
mod schema;
mod validator;
mod vocabulary;

pub use compiler::{Grammar, GrammarCompiler};
pub use constraint::GrammarConstraint;
pub use schema::{SchemaObjects, schema_from_api};
#[doc(hidden)]
pub use validator::SchemaValidator;
