package config

import (
	"fmt"
	"strconv"
	"strings"
)

// YAML returns the configuration as a file with every key written out, defaults included. Parse of the result gives an
// equal configuration. Keys of pools stay in their files; the result holds no secret.
func (c *Config) YAML() string {
	var b strings.Builder
	fmt.Fprintf(&b, "listen: %s\nadmin: %s\n", scalar(c.Listen), scalar(c.Admin))
	fmt.Fprintf(&b, "limit: %s\nmax_body: %s\n", shortDuration(c.Limit), shortSize(c.MaxBody))
	fmt.Fprintf(&b, "debug_headers: %t\n", c.DebugHeaders)
	fmt.Fprintf(&b, "log: {format: %s, level: %s}\n", c.Log.Format, levelWord(c.Log.Level))
	b.WriteString("pools:\n")
	for i := range c.Pools {
		c.Pools[i].write(&b)
	}
	if len(c.Models) > 0 {
		b.WriteString("models:\n")
	}
	for _, m := range c.Models {
		names := make([]string, len(m.Pools))
		for i, p := range m.Pools {
			names[i] = scalar(p.Pool)
		}
		fmt.Fprintf(&b, "  - {name: %s, serves: %s, pools: [%s]}\n", scalar(m.Name), scalar(m.Serves), strings.Join(names, ", "))
	}
	return b.String()
}

func (p *Pool) write(b *strings.Builder) {
	fmt.Fprintf(b, "  - name: %s\n", scalar(p.Name))
	switch {
	case p.File != "":
		fmt.Fprintf(b, "    file: %s\n", scalar(p.File))
	case p.DNS != "":
		fmt.Fprintf(b, "    dns: %s\n", scalar(p.DNS))
	default:
		b.WriteString("    endpoints:\n")
		for _, u := range p.Endpoints {
			fmt.Fprintf(b, "      - %s\n", scalar(u))
		}
	}
	seqs := "auto"
	if p.Full.MaxNumSeqs > 0 {
		seqs = strconv.Itoa(p.Full.MaxNumSeqs)
	}
	fmt.Fprintf(b, "    policy: %s\n    gates: %s\n", p.Policy, p.Gates)
	fmt.Fprintf(b, "    full: {waiting: %d, max_num_seqs: %s, projected_kv: %s, long_prompt: %d}\n",
		p.Full.Waiting, seqs, strconv.FormatFloat(p.Full.ProjectedKV, 'g', -1, 64), p.Full.LongPrompt)
	fmt.Fprintf(b, "    when_full: %s\n", p.WhenFull)
	if p.APIKeyFile != "" {
		fmt.Fprintf(b, "    api_key_file: %s\n", scalar(p.APIKeyFile))
	}
}

// scalar quotes a text unless it is plainly a text without quotes.
func scalar(s string) string {
	plain := s != "" && (s[0] >= 'a' && s[0] <= 'z' || s[0] == '/')
	for _, r := range s {
		plain = plain && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:", r))
	}
	switch strings.ToLower(s) {
	case "true", "false", "null", "yes", "no", "on", "off", "y", "n":
		plain = false
	}
	if plain && !strings.HasSuffix(s, ":") {
		return s
	}
	return strconv.Quote(s)
}

// LimitText is Limit as the file writes it: 1h30m.
func (c *Config) LimitText() string { return shortDuration(c.Limit) }

// MaxBodyText is MaxBody as the file writes it: 64MiB.
func (c *Config) MaxBodyText() string { return shortSize(c.MaxBody) }
