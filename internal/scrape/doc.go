// Package scrape asks the endpoints of a pool about themselves: the metrics page several times a second, the
// model list and the version now and then, the health page when the pool wants to know.
//
// It reads the few dozen series that routing needs and skips the rest of a page of 50 to 80 kB without looking
// at it twice. Each engine's names are one table (series.go). What a page does not say stays unknown; what it
// says badly (malformed lines, NaN, absurd values) is skipped and counted. It draws no conclusions: package
// pool does.
//
// A Fleet owns one goroutine per endpoint. At most one request per endpoint and page is under way, each has its
// own deadline and a bounded size, redirects are never followed, and the connections are not those of the data
// plane: an engine whose front end starves must not be asked twice, nor lend its slowness to users.
package scrape
