"""The binary form of messages, by the protobuf library: imported when it is first needed."""
