// Package wire is the messages and the service of peers.proto, generated.
//
// Regenerate with protoc 3.21, protoc-gen-go and protoc-gen-go-grpc in the path: go generate ./internal/peers/wire
package wire

//go:generate protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative peers.proto
