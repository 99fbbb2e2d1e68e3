//! Splits the replies of models into content, thinking and calls of tools.
//!
//! A [`ReplyStyle`] says how a model writes them; its chat template tells which. A [`ReplySyntax`]
//! joins a style and a vocabulary, and makes a [`ReplyDetokenizer`], whose text keeps the special
//! tokens, and a [`ReplyParser`] of that text.
//!
//! ```
//! use girih_words::reply::{ReplyMessage, ReplyStyle, ReplySyntax};
//!
//! let syntax = ReplySyntax::spelled(ReplyStyle::named("hermes")?);
//! let mut parser = syntax.parser(true);
//! let mut message = ReplyMessage::default();
//! for piece in ["<think>Pa", "ris.</think>\n\nI look. <tool", "_call>\n{\"name\": \"weather\", ",
//!     "\"arguments\": {\"city\": \"Paris\"}}\n</tool_call>"] {
//!     parser.push(piece).iter().for_each(|part| message.push(part));
//! }
//! parser.finish().iter().for_each(|part| message.push(part));
//! assert_eq!((message.thinking.as_str(), message.content.as_str()), ("Paris.", "I look."));
//! assert_eq!((message.calls[0].name.as_str(), message.calls[0].arguments.as_str()), ("weather", "{\"city\": \"Paris\"}"));
//! # Ok::<(), girih_tensor::Error>(())
//! ```

mod call;
mod grammar;
mod harmony;
mod marker;
mod object;
mod parser;
mod part;
mod python;
mod style;
mod syntax;
mod tagged;
mod tags;
mod tool;
mod value;

pub use grammar::{CallForm, CallGrammar, CallPiece};
pub use parser::ReplyParser;
pub use part::{ReplyMessage, ReplyPart, ToolCall};
pub use style::ReplyStyle;
pub use syntax::{ReplyDetokenizer, ReplySyntax};
pub use tool::Tool;
