# What is called over Cap'n Proto. `calls_capnp.rs` was made from this, so that nobody needs the compiler:
#
#     cargo install capnpc && capnp compile -o rust:. calls.capnp
@0xe6b1c5d1f0a3b7c9;

interface Calls {
  nothing @0 ();
  swallow @1 (bytes :Data) -> (length :UInt64);
}
