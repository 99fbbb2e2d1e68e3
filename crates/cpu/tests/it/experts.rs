//! Experts whose weights no router has chosen.

use girih_graph::{Act, Backend, Builder, Op, Weighed};
use girih_tensor::{DType, Shape};

use crate::fixture::{cpu, finish, key};

#[test]
fn weights_that_no_router_chose_are_refused() {
    let mut builder = Builder::new(key(4, 64));
    let x = builder.input("x", &[8], DType::F32);
    let weights = builder.input("weights", &[2], DType::F32);
    let stack = Shape::new(&[2, 8, 8]).unwrap();
    let [up, down] = ["up", "down"].map(|name| builder.weight(name, stack, DType::F32));
    let y = builder.shaped(
        "y",
        Op::Experts { used: 1, act: Act::Silu, limit: None, offset: None, weighed: Weighed::Results },
        &[x, weights, up, down],
        &[8],
    );
    let graph = finish(builder, y);
    let objections = cpu(1).objections(&graph);
    assert_eq!(objections[0].reason, "its weights are no choice of 1 experts by 'route'");
}
