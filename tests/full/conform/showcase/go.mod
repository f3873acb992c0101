module showcase

go 1.25.0

require (
	cloud.google.com/go/longrunning v0.8.0
	github.com/googleapis/gapic-showcase v0.39.0
	github.com/gorilla/mux v1.8.1
	google.golang.org/grpc v1.79.3
)

require (
	cloud.google.com/go/iam v1.6.0 // indirect
	github.com/golang/protobuf v1.5.4 // indirect
	github.com/google/go-cmp v0.7.0 // indirect
	github.com/iancoleman/strcase v0.3.0 // indirect
	golang.org/x/net v0.52.0 // indirect
	golang.org/x/sys v0.42.0 // indirect
	golang.org/x/text v0.35.0 // indirect
	google.golang.org/genproto v0.0.0-20260319201613-d00831a3d3e7 // indirect
	google.golang.org/genproto/googleapis/api v0.0.0-20260319201613-d00831a3d3e7 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260319201613-d00831a3d3e7 // indirect
	google.golang.org/protobuf v1.36.11 // indirect
)
