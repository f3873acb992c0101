// Serve the operations of gapic-showcase on two free ports of this machine: gRPC, and REST.
//
// The server's own command listens on all addresses, which no test should do.
package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"

	longrunning "cloud.google.com/go/longrunning/autogen/longrunningpb"
	"github.com/googleapis/gapic-showcase/server"
	showcase "github.com/googleapis/gapic-showcase/server/genproto"
	"github.com/googleapis/gapic-showcase/server/genrest"
	"github.com/googleapis/gapic-showcase/server/services"
	"github.com/gorilla/mux"
	"google.golang.org/grpc"
)

func main() {
	quiet := log.New(io.Discard, "", 0)
	messaging := services.NewMessagingServer(services.NewIdentityServer())
	backend := &services.Backend{
		EchoServer:       services.NewEchoServer(),
		OperationsServer: services.NewOperationsServer(messaging),
		StdLog:           quiet,
		ErrLog:           quiet,
		ObserverRegistry: server.ShowcaseObserverRegistry(),
	}

	overGRPC := grpc.NewServer()
	showcase.RegisterEchoServer(overGRPC, backend.EchoServer)
	longrunning.RegisterOperationsServer(overGRPC, backend.OperationsServer)
	listening := listen("grpc")
	go func() { log.Fatal(overGRPC.Serve(listening)) }()

	overREST := mux.NewRouter()
	genrest.RegisterHandlers(overREST, backend)
	log.Fatal(http.Serve(listen("http"), overREST))
}

// Listen on a free port, and print the URL.
func listen(scheme string) net.Listener {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s://%s\n", scheme, listener.Addr())
	return listener
}
