package simcmd

import (
	"flag"
	"fmt"
	"io"
	"strings"

	"pointsman.dev/pointsman/internal/engine"
)

// runExamples are in the help of pointsman sim run, and a test runs them.
func runExamples() []string {
	return []string{
		"# would one replica less do? the page shows why not",
		"pointsman sim run access.jsonl --endpoints 4,5,6 --html out.html",
		"# what if: a change against what there is, each in one more row",
		"pointsman sim run access.jsonl --if endpoints=5 --if prefix-caching=false --if gateways=3 --if endpoint=0:speed=0.5",
		"# half as much traffic again, with the gates off",
		"pointsman sim run access.jsonl --rate 1.5 --gates off",
		"# one slow server with half the memory, two that are added after a minute, one of them with a warm cache",
		"pointsman sim run access.jsonl --endpoints 4 --endpoint 0:speed=0.5,kv_tokens=150000 --endpoint 2:join=1m --endpoint 3:join=1m,warm=true",
		"# a server that dies and comes back, one that accepts requests and never answers, and clients that give up",
		"pointsman sim run access.jsonl --endpoint 1:down=30s-90s --endpoint 2:hang=20s --patience 30s",
		"# somebody sends two requests per second straight to a server",
		"pointsman sim run access.jsonl --endpoint 0:foreign=2,foreign_prompt=3000",
		"# three replicas of the gateway that know of each other's picks late, and of the servers little",
		"pointsman sim run access.jsonl --gateways 3 --exchange 250ms --report 2s --report-delay 200ms --report-loss 0.1",
		"# the same traffic under every published policy",
		"pointsman sim run access.jsonl --compare --seeds 3",
	}
}

// flagGroups is the order in which the help lists flags.
func flagGroups() [][]string {
	return [][]string{
		{"The traffic", "rate", "jitter", "pool", "length", "warmup", "patience"},
		{"The endpoints", "endpoints", "profile", "kv-tokens", "block-size", "max-num-seqs", "max-num-batched-tokens", "prefix-caching", "endpoint", "down"},
		{"The gateway", "policy", "compare", "gates", "when-full", "gateways", "exchange", "report", "report-delay", "report-loss"},
		{"What is good", "ttft", "long-ttft", "long-prompt", "tpot"},
		{"Runs and output", "if", "seeds", "first-seed", "html", "json"},
	}
}

func runUsage(fs *flag.FlagSet, w io.Writer) {
	fmt.Fprint(w, `Usage: pointsman sim run TRACE [flags]

Replays a trace through the gateway's own decisions, against a model of vLLM, in virtual time: what would it have been like with
other endpoints, gates or limits? TRACE is one of

  access records   of this gateway (log: {format: json, prefix_hashes: true})
  Mooncake's JSON  lines of timestamp, input_length, output_length, hash_ids; also what pointsman sim record writes
  Azure's CSV      TIMESTAMP,ContextTokens,GeneratedTokens
  NAME.yaml        made-up traffic: classes of conversations (docs/sim.md)
  W1 to W8b        the workloads of pointsman sim compare

Examples:
`)
	for _, line := range runExamples() {
		fmt.Fprintf(w, "  %s\n", line)
	}
	for _, group := range flagGroups() {
		fmt.Fprintf(w, "\n%s:\n", group[0])
		for _, name := range group[1:] {
			f := fs.Lookup(name)
			kind, usage := flag.UnquoteUsage(f)
			if d := f.DefValue; d != "" && d != "0" && d != "0s" && d != "false" && !strings.Contains(usage, "(default") {
				usage += " (default " + d + ")"
			}
			fmt.Fprintf(w, "  %-32s %s\n", "--"+name+" "+kind, usage)
		}
	}
	fmt.Fprint(w, `
Keys of --endpoint NUMBER:KEY=VALUE,... (NUMBER counts from 0; 2-3 is a range; the same keys in NAME.yaml under endpoints):
  speed=0.5                        half as fast; 2: twice
  kv_tokens=, block_size=, max_num_seqs=, max_num_batched_tokens=, prefix_caching=false      as the flags for all
  ranks=2                          data-parallel engines behind the address
  join=60s, warm=true              it appears after a minute; warm: its cache is a copy of the fullest one then
  leave=5m                         discovery takes it away; it finishes what it has
  down=30s-90s                     its process is dead: connections are refused; back with an empty cache. Without -90s it stays dead
  hang=30s-90s                     its process stands still: it accepts and does not answer; then it goes on with what it has
  foreign=2, foreign_prompt=1000, foreign_output=200        requests per second past the gateway, and their mean tokens
`)
	fmt.Fprintf(w, "\nProfiles: %s\n", strings.Join(engine.ProfileNames(), ", "))
	fmt.Fprint(w, "Policies: pointsman sim compare --help\n")
}
