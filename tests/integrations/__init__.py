"""Each integration with the real framework, over real sockets."""
