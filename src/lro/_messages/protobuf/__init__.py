"""The binary form of messages, by the protobuf library; imported only when needed."""
