//! Tests of the library on the built-in model.

mod given;
mod hooks;
mod model_pool;
mod replies;
mod sessions;
mod starts;
