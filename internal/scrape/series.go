package scrape

// role is what a series tells, whatever the engine calls it.
type role uint8

const (
	roleNone role = iota
	roleRunning
	roleWaiting
	roleWaitingCapacity
	roleWaitingDeferred
	roleKVUsage
	roleKVUsageOld // a deprecated name: counts only where the new one is missing
	roleKVTokensUsed
	roleKVTokensMax
	roleBlockSize
	roleBlocks
	roleCapacityTokens
	roleMaxNumSeqs
	roleAwake
	roleProcessStart
	roleQueries
	roleQueriesOld
	roleHits
	roleHitsOld
	roleReusedBlocks
	roleMissedBlocks
	rolePromptTokens
	roleComputedTokens
	roleCachedTokens  // of finished requests
	rolePrefillCached // as prefill goes
	roleGenerationTokens
	rolePreemptions
	roleConfigVLLM   // the labels of cache_config_info
	roleConfigSGLang // the same of SGLang
	roleCount
)

// kind is how values of one rank are put together and which are believable.
type kind uint8

const (
	kindCount   kind = iota // a gauge of things, of one rank: the largest (old engines print one series per process)
	kindShare               // [0,1]
	kindCounter             // sum
	kindInfo                // the value says nothing, the labels do
	kindTime                // Unix seconds
)

func (r role) kind() kind {
	switch r {
	case roleKVUsage, roleKVUsageOld, roleAwake:
		return kindShare
	case roleConfigVLLM, roleConfigSGLang:
		return kindInfo
	case roleProcessStart:
		return kindTime
	case roleRunning, roleWaiting, roleWaitingCapacity, roleWaitingDeferred, roleKVTokensUsed, roleKVTokensMax,
		roleBlockSize, roleBlocks, roleCapacityTokens, roleMaxNumSeqs:
		return kindCount
	}
	return kindCounter
}

// believable says whether a value can be what the role means. Engines print garbage now and then (NaN before the
// first step, negative counts after a race), and one such number must not steer traffic.
func (r role) believable(v float64) bool {
	switch r.kind() {
	case kindShare:
		return v >= 0 && v <= 1.05
	case kindCount:
		return v >= 0 && v <= 1e12
	case kindInfo:
		return v == v
	}
	return v >= 0 && v <= 1e18 // also false for NaN
}

// engines that a page can come from, as Report.Engine names them.
const (
	engineVLLM   = "vllm"
	engineSGLang = "sglang"
	engineLlama  = "llama.cpp"
	engineTGI    = "tgi"
	engineTRTLLM = "trtllm"
	engineTriton = "triton"
)

// series says what a sample means: its role, provided that the label, if any, has the wanted value.
type series struct {
	role        role
	label, want string
}

// table is the list of names. It is never changed.
type table map[string][]series

func one(r role) []series { return []series{{role: r}} }

// names returns the series of every engine that is understood. Counters stand with their full sample name.
func names() table {
	t := table{"process_start_time_seconds": one(roleProcessStart)}
	for _, add := range []func(table){addVLLM, addSGLang, addLlama, addTGI, addTRTLLM, addTriton} {
		add(t)
	}
	return t
}

// addVLLM: V1, and the names that it replaced between 0.8 and 0.15.
func addVLLM(t table) {
	const p = "vllm:"
	t[p+"num_requests_running"] = one(roleRunning)
	t[p+"num_requests_waiting"] = one(roleWaiting)
	t[p+"num_requests_waiting_by_reason"] = []series{
		{roleWaitingCapacity, "reason", "capacity"}, {roleWaitingDeferred, "reason", "deferred"},
	}
	t[p+"engine_sleep_state"] = []series{{roleAwake, "sleep_state", "awake"}}
	t[p+"kv_cache_usage_perc"] = one(roleKVUsage)
	t[p+"gpu_cache_usage_perc"] = one(roleKVUsageOld)
	t[p+"prefix_cache_queries_total"] = one(roleQueries)
	t[p+"prefix_cache_hits_total"] = one(roleHits)
	t[p+"gpu_prefix_cache_queries_total"] = one(roleQueriesOld)
	t[p+"gpu_prefix_cache_hits_total"] = one(roleHitsOld)
	t[p+"prompt_tokens_total"] = one(rolePromptTokens)
	t[p+"prompt_tokens_by_source_total"] = []series{{roleComputedTokens, "source", "local_compute"}}
	t[p+"generation_tokens_total"] = one(roleGenerationTokens)
	t[p+"num_preemptions_total"] = one(rolePreemptions)
	t[p+"cache_config_info"] = one(roleConfigVLLM)
}

func addSGLang(t table) {
	const p = "sglang:"
	t[p+"num_running_reqs"] = one(roleRunning)
	t[p+"num_queue_reqs"] = one(roleWaitingCapacity)
	t[p+"num_grammar_queue_reqs"] = one(roleWaitingDeferred)
	t[p+"token_usage"] = one(roleKVUsage)
	t[p+"max_total_num_tokens"] = one(roleCapacityTokens)
	t[p+"max_running_requests"] = one(roleMaxNumSeqs)
	t[p+"prompt_tokens_total"] = one(rolePromptTokens)
	t[p+"generation_tokens_total"] = one(roleGenerationTokens)
	t[p+"cached_tokens_total"] = one(roleCachedTokens)
	t[p+"realtime_tokens_total"] = []series{
		{roleComputedTokens, "mode", "prefill_compute"}, {rolePrefillCached, "mode", "prefill_cache"},
	}
	t[p+"cache_config_info"] = one(roleConfigSGLang)
}

func addLlama(t table) {
	const p = "llamacpp:"
	t[p+"requests_processing"] = one(roleRunning)
	t[p+"requests_deferred"] = one(roleWaiting)
	t[p+"kv_cache_usage_ratio"] = one(roleKVUsage)
	t[p+"prompt_tokens_total"] = one(roleComputedTokens) // counts what was computed, not what was asked
	t[p+"tokens_predicted_total"] = one(roleGenerationTokens)
}

func addTGI(t table) {
	const p = "tgi_"
	t[p+"queue_size"] = one(roleWaiting)
	t[p+"batch_current_size"] = one(roleRunning)
	t[p+"batch_current_max_tokens"] = one(roleKVTokensUsed)
	t[p+"batch_max_total_tokens"] = one(roleKVTokensMax)
	t[p+"request_input_length_sum"] = one(rolePromptTokens)
	t[p+"request_generated_tokens_sum"] = one(roleGenerationTokens)
}

func addTRTLLM(t table) {
	const p = "trtllm_"
	t[p+"num_requests_waiting"] = one(roleWaiting)
	t[p+"num_requests_running"] = one(roleRunning)
	t[p+"kv_cache_utilization"] = one(roleKVUsage)
	t[p+"kv_cache_tokens_per_block"] = one(roleBlockSize)
	t[p+"kv_cache_max_blocks"] = one(roleBlocks)
	t[p+"max_num_active_requests"] = one(roleMaxNumSeqs)
	t[p+"kv_cache_reused_blocks_total"] = one(roleReusedBlocks)
	t[p+"kv_cache_missed_blocks_total"] = one(roleMissedBlocks)
	t[p+"prompt_tokens_total"] = one(rolePromptTokens)
	t[p+"prompt_cached_tokens_total"] = one(roleCachedTokens)
	t[p+"generation_tokens_total"] = one(roleGenerationTokens)
}

func addTriton(t table) {
	t["nv_trt_llm_request_metrics"] = []series{
		{roleWaiting, "request_type", "waiting"}, {roleRunning, "request_type", "scheduled"},
		{roleMaxNumSeqs, "request_type", "max"},
	}
	t["nv_trt_llm_kv_cache_block_metrics"] = []series{
		{roleKVUsage, "kv_cache_block_type", "fraction"}, {roleBlocks, "kv_cache_block_type", "max"},
		{roleBlockSize, "kv_cache_block_type", "tokens_per"},
	}
}

// engineOf names the engine by the first byte of a series that was understood, or "" for a common one.
func engineOf(name []byte) string {
	switch {
	case len(name) < 2:
		return ""
	case name[0] == 'v':
		return engineVLLM
	case name[0] == 's':
		return engineSGLang
	case name[0] == 'l':
		return engineLlama
	case name[0] == 'n':
		return engineTriton
	case name[0] == 't' && name[1] == 'g':
		return engineTGI
	case name[0] == 't':
		return engineTRTLLM
	}
	return ""
}

// maybe says by its first bytes whether a line can start a series of the table: most lines of a page cannot.
func maybe(line []byte) bool {
	if len(line) < 12 {
		return false
	}
	switch line[0] {
	case 'v':
		return line[4] == ':'
	case 's':
		return line[6] == ':'
	case 'l':
		return line[8] == ':'
	case 't':
		return line[3] == '_' || line[6] == '_'
	case 'n':
		return line[2] == '_'
	case 'p':
		return line[7] == '_' && line[8] == 's'
	}
	return false
}
