//! Tests of grammars: texts fed token by token.
#![forbid(unsafe_code)]

mod calls;
mod feed;
mod grammars;
mod numbers;
mod refusals;
mod suite;
mod tools;
