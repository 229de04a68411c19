package config

import (
	"unicode/utf8"

	"github.com/goccy/go-yaml/token"
)

// joinFlowColons mends what the YAML library does to a colon inside a list inside a mapping, both in flow style: in
// {endpoints: [http://10.0.0.3:8000]} it takes http://10.0.0.3 for a key and 8000 for its value. YAML 1.2 (7.3.3, plain
// scalars) says that a colon without a blank behind it belongs to an unquoted text. Inside a flow list that is mended
// here; elsewhere the library is right.
func joinFlowColons(tokens token.Tokens) token.Tokens {
	var out token.Tokens
	var open []token.Type
	for i := 0; i < len(tokens); i++ {
		tk := tokens[i]
		switch tk.Type {
		case token.SequenceStartType, token.MappingStartType:
			open = append(open, tk.Type)
		case token.SequenceEndType, token.MappingEndType:
			open = open[:max(0, len(open)-1)]
		}
		if len(open) > 0 && open[len(open)-1] == token.SequenceStartType {
			for i+2 < len(tokens) && plain(tk) && tokens[i+1].Type == token.MappingValueType && plain(tokens[i+2]) &&
				touches(tk, tokens[i+1]) && touches(tokens[i+1], tokens[i+2]) {
				tk = token.String(tk.Value+":"+tokens[i+2].Value, tk.Origin+":"+tokens[i+2].Origin, tk.Position)
				i += 2
			}
		}
		out.Add(tk)
	}
	return out
}

// plain reports whether a token is an unquoted scalar.
func plain(tk *token.Token) bool {
	switch tk.Type {
	case token.StringType, token.IntegerType, token.FloatType, token.BoolType, token.NullType,
		token.BinaryIntegerType, token.OctetIntegerType, token.HexIntegerType:
		return true
	}
	return false
}

// touches reports whether b starts where a ends.
func touches(a, b *token.Token) bool {
	return a.Position != nil && b.Position != nil && a.Position.Line == b.Position.Line &&
		a.Position.Column+utf8.RuneCountInString(a.Value) == b.Position.Column
}
