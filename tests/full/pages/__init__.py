"""Tests of docs pages whose claims no snippet shows: the page is compared with the behaviour."""
