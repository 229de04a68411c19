package acceptance

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// pathologies are the ways in which gateways were seen to route badly in the field, each with what holds that this one does not: test
// functions ("package/file_test.go TestName"), or routing cases by a part of the sentence above them ("route/testdata/file.txtar:
// sentence").
var pathologies = []struct {
	name string
	held []string
}{
	{"a burst inside one scrape interval goes to one endpoint", []string{
		"pool/pick_test.go TestBurstBetweenReportsSpreads", "sim/pathology_test.go TestBurstBetweenReports", "acceptance/spread_test.go TestBurstInsideOneReport"}},
	{"ties go to the first in the list", []string{
		"route/route_test.go TestEqualsAreChosenEvenly", "pool/pick_test.go TestSequentialRequestsUseEveryEndpoint"}},
	{"a dead endpoint that fails fast looks least loaded and takes everything", []string{
		"route/testdata/pathologies.txtar: What failed fast has nothing in flight", "pool/pick_test.go TestDeadEndpointIsLeftAlone",
		"sim/outage_test.go TestIdleEndpointDiesUnseen", "sim/outage_test.go TestDeadEndpointThatFailsFast", "health/health_test.go TestFailingEndpointCostsLittle", "acceptance/faults_test.go TestDeadEndpoint"}},
	{"an endpoint that was never scraped looks idle", []string{
		"route/testdata/pathologies.txtar: An endpoint of which nothing was heard yet", "route/route_test.go TestUnknownIsAverage"}},
	{"one hot prefix pins one endpoint", []string{
		"route/behaviour_test.go TestHotPromptSpreads", "acceptance/prefix_test.go TestHotPromptSpreads"}},
	{"an imbalance of the fleet switches affinity off for everybody", []string{
		"route/testdata/pathologies.txtar: One endpoint that is far busier"}},
	{"normalisation makes 1 against 0 as heavy as 100 against 0", []string{
		"route/testdata/pathologies.txtar: One request against none"}},
	{"in-flight counts leak or go negative on aborts and flaps", []string{
		"pool/booking_test.go TestThousandAbortsWhileEndpointsComeAndGo", "sim/pathology_test.go TestBooksReturnToZero", "acceptance/faults_test.go TestNothingLeaks"}},
	{"in-flight counts are reset by an update of a pod", []string{
		"pool/booking_test.go TestRemovedEndpointFinishesAndComesBackClean", "pool/booking_test.go TestUpdateKeepsWhatIsInFlight"}},
	{"index entries outlive the cache", []string{
		"sim/pathology_test.go TestIndexDoesNotOutliveTheCache", "pool/pick_test.go TestBrokenPromisesAreNotRepeated"}},
	{"index entries outlive the pod", []string{
		"pool/booking_test.go TestRemovedEndpointFinishesAndComesBackClean"}},
	{"index entries outlive the restart of the engine", []string{
		"pool/ingest_test.go TestRestartForgetsTheCache", "sim/outage_test.go TestDeadEndpointThatFailsFast"}},
	{"another pod's entry is removed with one's own", []string{
		"pool/pick_test.go TestEntriesGoWithTheirEndpointOnly", "pool/pick_test.go TestAFailureTakesNothingFromOthers", "prefix/promise_test.go TestPromises"}},
	{"load is counted at the first token instead of at the pick", []string{
		"pool/booking_test.go TestBookingIsCountedFromThePickAndReleasedOnce"}},
	{"a herd onto a fresh endpoint", []string{
		"sim/pathology_test.go TestNoHerdOntoAFreshEndpoint", "acceptance/queueleave_test.go TestNoHerdAtANewEndpoint"}},
	{"a client's 400s eject endpoints", []string{
		"health/health_test.go TestClientErrorsNeverCount", "pool/refusals_test.go TestMistakesEverywhere"}},
	{"a retry goes to the endpoint that just failed", []string{
		"pool/booking_test.go TestRepickVisitsEveryEndpointOnce"}},
}

// Every pathology has a test, and the tests named are there.
func TestPathologiesAreHeld(t *testing.T) {
	for _, p := range pathologies {
		if len(p.held) == 0 {
			t.Errorf("nothing holds that not: %s", p.name)
		}
		for _, h := range p.held {
			file, name, routing := strings.Cut(h, ": ")
			if !routing {
				var test string
				file, test, _ = strings.Cut(h, " ")
				name = "\nfunc " + test + "(t *testing.T) {"
			}
			text, err := os.ReadFile(filepath.Join("..", filepath.FromSlash(file)))
			if err != nil {
				t.Errorf("%s: %v", p.name, err)
			} else if !strings.Contains(string(text), name) {
				t.Errorf("%s: %q is not there", p.name, h)
			}
		}
	}
}
