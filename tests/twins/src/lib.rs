//! Compares girih's code with other implementations: the validator of JSON Schema with `jsonschema`, the
//! tokenizers with `tokenizers`.
#![forbid(unsafe_code)]

#[cfg(test)]
mod chats;
#[cfg(test)]
mod models;
#[cfg(test)]
mod normalizers;
#[cfg(test)]
mod pipelines;
#[cfg(test)]
mod schema_suite;
#[cfg(test)]
mod schemas;
#[cfg(test)]
mod wordpiece;
