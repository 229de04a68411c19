// Package trace reads recorded traffic for package sim: Mooncake's JSON lines (and what Write makes), Azure's CSV, and the access
// records of the gateway. A file is read one line at a time, twice: Open checks every line and finds out how far stamps are out of
// order, a Replay sends the requests. What is held in memory is what is out of order, never the file.
//
// What is wrong with a file is an *Error with its line. Nothing here knows prompts: a trace has lengths, times, and names of pieces
// of text that are equal where the text was.
package trace
