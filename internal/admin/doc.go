// Package admin is the HTTP surface for operators: health and readiness, metrics, profiles, the status API
// and the dashboard. It is served on its own address, never on the one that clients use.
//
// It holds no state of the gateway: everything comes from the functions in [Config]. The only thing that it
// keeps is a few minutes of traffic history for the dashboard's sparklines, which [Server.Run] samples once a
// second.
package admin
