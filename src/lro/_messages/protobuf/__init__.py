"""The binary form of messages, by the protobuf library: imported when somebody asks for it."""
