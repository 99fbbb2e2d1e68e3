//! Tests of the server through its socket: of its routes on the built-in model, and of what guards
//! them on routes of their own.

mod adapters;
mod anthropic;
mod attacks;
mod cache_reasons;
mod changing_folder;
mod chat;
mod client;
mod completions;
mod connections;
mod documented_parameters;
mod draw;
mod embeddings;
mod ends;
mod engine_faults;
mod equal_bytes;
mod functions;
mod guarded_server;
mod images;
mod infill;
mod keys_of_routes;
mod kv_events;
mod leaving;
mod model_loads;
mod model_server;
mod observed;
mod ollama;
mod pages_of_other_origins;
mod parameters;
mod prefill;
mod raw_client;
mod rendered;
mod reply_rules;
mod responses;
mod routes;
mod soak;
mod strict_objects;
mod switches;
mod tls;
mod tools;
#[cfg(feature = "otlp")]
mod traces;
mod videos;
mod waiting;
