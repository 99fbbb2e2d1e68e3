// The operations of mlir-aie's dialects `aie` and `aiex` that the emitter writes, in IRDL: their operands,
// results, regions and required attributes, as in AIEOps.td (2741ca50), AIEAttrs.td (a3897048) and AIEX.td
// (97737142). `tests/it/emit.rs` checks emitted modules with
//
//   mlir-opt-19 --irdl-file=aie.irdl.mlir --allow-unregistered-dialect
//
// IRDL defines no terminators, no symbol tables and no syntax, so that the test replaces these: `aie.device`
// becomes `builtin.module`; `aie.end`, `aie.next_bd` and `aie.dma_start` become operations of a dialect that is
// not registered; a sequence gets a terminator; `#aie<bd_dim_layout_array[…]>` becomes the attribute below.
// Everything else of the text is what is emitted.

irdl.dialect @aie {
  // Sizes and strides: <[[size, stride], …]>.
  irdl.attribute @bd_dim_layout_array {
    %dims = irdl.base "#builtin.array"
    irdl.parameters(%dims)
  }

  irdl.operation @tile {
    %c0 = irdl.is index
    %c1 = irdl.base "#builtin.integer"
    %c2 = irdl.base "#builtin.integer"
    irdl.results(%c0)
    irdl.attributes {
      "col" = %c1,
      "row" = %c2
    }
  }
  irdl.operation @lock {
    %c0 = irdl.is index
    %c1 = irdl.is index
    %c2 = irdl.base "#builtin.integer"
    %c3 = irdl.base "#builtin.integer"
    %c4 = irdl.base "#builtin.string"
    irdl.operands(%c0)
    irdl.results(%c1)
    irdl.attributes {
      "lockID" = %c2,
      "init" = %c3,
      "sym_name" = %c4
    }
  }
  irdl.operation @buffer {
    %c0 = irdl.is index
    %c1 = irdl.base "!builtin.memref"
    %c2 = irdl.base "#builtin.integer"
    %c3 = irdl.base "#builtin.string"
    irdl.operands(%c0)
    irdl.results(%c1)
    irdl.attributes {
      "address" = %c2,
      "sym_name" = %c3
    }
  }
  // WireBundle: DMA is 1.
  irdl.operation @flow {
    %c0 = irdl.is index
    %c1 = irdl.is index
    %c3 = irdl.is 1 : i32
    %c2 = irdl.any_of(%c3)
    %c4 = irdl.base "#builtin.integer"
    %c6 = irdl.is 1 : i32
    %c5 = irdl.any_of(%c6)
    %c7 = irdl.base "#builtin.integer"
    irdl.operands(%c0, %c1)
    irdl.attributes {
      "source_bundle" = %c2,
      "source_channel" = %c4,
      "dest_bundle" = %c5,
      "dest_channel" = %c7
    }
  }
  irdl.operation @cascade_flow {
    %c0 = irdl.is index
    %c1 = irdl.is index
    irdl.operands(%c0, %c1)
  }
  irdl.operation @mem {
    %c0 = irdl.is index
    %c1 = irdl.is index
    %r0 = irdl.region
    irdl.operands(%c0)
    irdl.results(%c1)
    irdl.regions(%r0)
  }
  irdl.operation @memtile_dma {
    %c0 = irdl.is index
    %c1 = irdl.is index
    %r0 = irdl.region
    irdl.operands(%c0)
    irdl.results(%c1)
    irdl.regions(%r0)
  }
  // LockAction: Release is 1, AcquireGreaterEqual is 2.
  irdl.operation @use_lock {
    %c0 = irdl.is index
    %c2 = irdl.is 1 : i32
    %c3 = irdl.is 2 : i32
    %c1 = irdl.any_of(%c2, %c3)
    %c4 = irdl.base "#builtin.integer"
    irdl.operands(%c0)
    irdl.attributes {
      "action" = %c1,
      "value" = %c4
    }
  }
  irdl.operation @dma_bd {
    %c0 = irdl.base "!builtin.memref"
    %c1 = irdl.base "#builtin.integer"
    %c2 = irdl.base "#builtin.integer"
    %c3 = irdl.base "#builtin.integer"
    irdl.operands(%c0)
    irdl.attributes {
      "offset" = %c1,
      "len" = %c2,
      "bd_id" = %c3
    }
  }
  irdl.operation @core {
    %c0 = irdl.is index
    %c1 = irdl.is index
    %c2 = irdl.base "#builtin.integer"
    %c3 = irdl.base "#builtin.string"
    %r0 = irdl.region
    irdl.operands(%c0)
    irdl.results(%c1)
    irdl.attributes {
      "stack_size" = %c2,
      "link_with" = %c3
    }
    irdl.regions(%r0)
  }
}

irdl.dialect @aiex {
  irdl.operation @runtime_sequence {
    %c0 = irdl.base "#builtin.string"
    %r0 = irdl.region
    irdl.attributes {
      "sym_name" = %c0
    }
    irdl.regions(%r0)
  }
  irdl.operation @"npu.writebd" {
    %c0 = irdl.base "#builtin.integer"
    %c1 = irdl.base "#builtin.integer"
    %c2 = irdl.base "#builtin.integer"
    %c3 = irdl.base "#builtin.integer"
    %c4 = irdl.base "#builtin.integer"
    %c5 = irdl.base "#builtin.integer"
    %c6 = irdl.base "#builtin.integer"
    %c7 = irdl.base "#builtin.integer"
    %c8 = irdl.base "#builtin.integer"
    %c9 = irdl.base "#builtin.integer"
    %c10 = irdl.base "#builtin.integer"
    %c11 = irdl.base "#builtin.integer"
    %c12 = irdl.base "#builtin.integer"
    %c13 = irdl.base "#builtin.integer"
    %c14 = irdl.base "#builtin.integer"
    %c15 = irdl.base "#builtin.integer"
    %c16 = irdl.base "#builtin.integer"
    %c17 = irdl.base "#builtin.integer"
    %c18 = irdl.base "#builtin.integer"
    %c19 = irdl.base "#builtin.integer"
    %c20 = irdl.base "#builtin.integer"
    %c21 = irdl.base "#builtin.integer"
    %c22 = irdl.base "#builtin.integer"
    %c23 = irdl.base "#builtin.integer"
    %c24 = irdl.base "#builtin.integer"
    %c25 = irdl.base "#builtin.integer"
    %c26 = irdl.base "#builtin.integer"
    %c27 = irdl.base "#builtin.integer"
    %c28 = irdl.base "#builtin.integer"
    %c29 = irdl.base "#builtin.integer"
    %c30 = irdl.base "#builtin.integer"
    %c31 = irdl.base "#builtin.integer"
    %c32 = irdl.base "#builtin.integer"
    irdl.attributes {
      "column" = %c0,
      "bd_id" = %c1,
      "buffer_length" = %c2,
      "buffer_offset" = %c3,
      "enable_packet" = %c4,
      "out_of_order_id" = %c5,
      "packet_id" = %c6,
      "packet_type" = %c7,
      "d0_size" = %c8,
      "d0_stride" = %c9,
      "d1_size" = %c10,
      "d1_stride" = %c11,
      "d2_size" = %c12,
      "d2_stride" = %c13,
      "iteration_current" = %c14,
      "iteration_size" = %c15,
      "iteration_stride" = %c16,
      "next_bd" = %c17,
      "row" = %c18,
      "use_next_bd" = %c19,
      "valid_bd" = %c20,
      "lock_rel_val" = %c21,
      "lock_rel_id" = %c22,
      "lock_acq_enable" = %c23,
      "lock_acq_val" = %c24,
      "lock_acq_id" = %c25,
      "d0_zero_before" = %c26,
      "d1_zero_before" = %c27,
      "d2_zero_before" = %c28,
      "d0_zero_after" = %c29,
      "d1_zero_after" = %c30,
      "d2_zero_after" = %c31,
      "burst_length" = %c32
    }
  }
  irdl.operation @"npu.address_patch" {
    %c0 = irdl.base "#builtin.integer"
    %c1 = irdl.base "#builtin.integer"
    %c2 = irdl.base "#builtin.integer"
    irdl.attributes {
      "addr" = %c0,
      "arg_idx" = %c1,
      "arg_plus" = %c2
    }
  }
  // DMAChannelDir: S2MM is 0, MM2S is 1.
  irdl.operation @"npu.push_queue" {
    %c0 = irdl.base "#builtin.integer"
    %c1 = irdl.base "#builtin.integer"
    %c3 = irdl.is 0 : i32
    %c4 = irdl.is 1 : i32
    %c2 = irdl.any_of(%c3, %c4)
    %c5 = irdl.base "#builtin.integer"
    %c7 = irdl.is false
    %c8 = irdl.is true
    %c6 = irdl.any_of(%c7, %c8)
    %c9 = irdl.base "#builtin.integer"
    %c10 = irdl.base "#builtin.integer"
    irdl.attributes {
      "column" = %c0,
      "row" = %c1,
      "direction" = %c2,
      "channel" = %c5,
      "issue_token" = %c6,
      "repeat_count" = %c9,
      "bd_id" = %c10
    }
  }
  irdl.operation @"npu.sync" {
    %c0 = irdl.base "#builtin.integer"
    %c1 = irdl.base "#builtin.integer"
    %c3 = irdl.is 0 : i32
    %c4 = irdl.is 1 : i32
    %c2 = irdl.any_of(%c3, %c4)
    %c5 = irdl.base "#builtin.integer"
    %c6 = irdl.base "#builtin.integer"
    %c7 = irdl.base "#builtin.integer"
    irdl.attributes {
      "column" = %c0,
      "row" = %c1,
      "direction" = %c2,
      "channel" = %c5,
      "column_num" = %c6,
      "row_num" = %c7
    }
  }
}
