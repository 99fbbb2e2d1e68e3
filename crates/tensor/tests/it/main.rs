//! Tests of the storage formats through the public interface.

mod golden;
mod levels;
mod pack;
mod q4nx;
mod unpack;
