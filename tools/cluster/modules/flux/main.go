// Does to a file of objects what Flux's kustomize-controller does, with its own packages: apply them server-side under its
// field manager and owner labels, look for drift, and wait until they are reconciled. The controller itself needs a module
// that can't be had everywhere.
//
//	flux-ssa apply|diff|wait|status [flags] KUSTOMIZATION OBJECTS
//
// KUSTOMIZATION is a file with a Flux Kustomization (its name, healthCheckExprs and timeout count), OBJECTS one with what it
// would build. Prints one JSON object per object; exits 1 where waiting failed, and says why on stderr.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/polling"
	"github.com/fluxcd/cli-utils/pkg/kstatus/polling/clusterreader"
	"github.com/fluxcd/cli-utils/pkg/kstatus/polling/engine"
	"github.com/fluxcd/cli-utils/pkg/object"
	"github.com/fluxcd/pkg/apis/kustomize"
	"github.com/fluxcd/pkg/runtime/cel"
	"github.com/fluxcd/pkg/ssa"
	ssautils "github.com/fluxcd/pkg/ssa/utils"
	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

type kustomization struct {
	Metadata struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
	Spec struct {
		HealthCheckExprs []kustomize.CustomHealthCheck `json:"healthCheckExprs"`
		Timeout          string                        `json:"timeout"`
	} `json:"spec"`
}

func main() {
	log.SetLogger(logr.Discard())
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "flux-ssa:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, arguments []string) error {
	if len(arguments) == 0 {
		return fmt.Errorf("say apply, diff, wait or status")
	}
	flags := flag.NewFlagSet(arguments[0], flag.ContinueOnError)
	timeout := flags.Duration("timeout", 0, "how long to wait, instead of the Kustomization's timeout")
	failFast := flags.Bool("fail-fast", false, "stop waiting as soon as one object has failed")
	if err := flags.Parse(arguments[1:]); err != nil {
		return err
	}
	if flags.NArg() != 2 {
		return fmt.Errorf("%s needs two files, the Kustomization and the objects; it has %d", arguments[0], flags.NArg())
	}
	kust, objects, err := read(flags.Arg(0), flags.Arg(1))
	if err != nil {
		return err
	}
	manager, status, err := connect(kust)
	if err != nil {
		return err
	}
	manager.SetOwnerLabels(objects, kust.Metadata.Name, kust.Metadata.Namespace)
	switch arguments[0] {
	case "apply":
		changes, err := manager.ApplyAllStaged(ctx, objects, ssa.DefaultApplyOptions())
		if err != nil {
			return err
		}
		for _, change := range changes.Entries {
			show(change.Subject, string(change.Action), "")
		}
	case "diff":
		for _, obj := range objects {
			change, _, _, err := manager.Diff(ctx, obj, ssa.DefaultDiffOptions())
			if err != nil {
				return err
			}
			show(change.Subject, string(change.Action), "")
		}
	case "wait":
		limit := *timeout
		if limit == 0 {
			if limit, err = time.ParseDuration(kust.Spec.Timeout); err != nil {
				return fmt.Errorf("the Kustomization's timeout: %w", err)
			}
		}
		return manager.Wait(objects, ssa.WaitOptions{Interval: 200 * time.Millisecond, Timeout: limit, FailFast: *failFast})
	case "status":
		return status(ctx, objects)
	default:
		return fmt.Errorf("%q is none of apply, diff, wait and status", arguments[0])
	}
	return nil
}

func read(kustFile, objectFile string) (kustomization, []*unstructured.Unstructured, error) {
	var kust kustomization
	text, err := os.ReadFile(kustFile)
	if err != nil {
		return kust, nil, err
	}
	documents, err := ssautils.ReadObjects(bytes.NewReader(text))
	if err != nil {
		return kust, nil, err
	}
	for _, document := range documents {
		if document.GetKind() != "Kustomization" {
			continue
		}
		text, err := document.MarshalJSON()
		if err != nil {
			return kust, nil, err
		}
		if err := json.Unmarshal(text, &kust); err != nil {
			return kust, nil, err
		}
	}
	if kust.Metadata.Name == "" {
		return kust, nil, fmt.Errorf("%s holds no Kustomization with a name", kustFile)
	}
	text, err = os.ReadFile(objectFile)
	if err != nil {
		return kust, nil, err
	}
	objects, err := ssautils.ReadObjects(bytes.NewReader(text))
	return kust, objects, err
}

type statusFunc func(context.Context, []*unstructured.Unstructured) error

// connect makes the manager as kustomize-controller does: its field manager, and its readers of status with the CEL
// expressions before the built-in ones.
func connect(kust kustomization) (*ssa.ResourceManager, statusFunc, error) {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return nil, nil, err
	}
	kube, err := client.New(config, client.Options{})
	if err != nil {
		return nil, nil, err
	}
	options := polling.Options{ClusterReaderFactory: engine.ClusterReaderFactoryFunc(clusterreader.NewDirectClusterReader)}
	var custom engine.StatusReader
	if len(kust.Spec.HealthCheckExprs) > 0 {
		reader, err := cel.NewStatusReader(kust.Spec.HealthCheckExprs)
		if err != nil {
			return nil, nil, err
		}
		custom = reader(kube.RESTMapper())
		options.CustomStatusReaders = []engine.StatusReader{custom}
	}
	poller := polling.NewStatusPoller(kube, kube.RESTMapper(), options)
	owner := ssa.Owner{Field: "kustomize-controller", Group: "kustomize.toolkit.fluxcd.io"}
	status := func(ctx context.Context, objects []*unstructured.Unstructured) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		seen := 0
		events := poller.Poll(ctx, object.UnstructuredSetToObjMetadataSet(objects), polling.PollOptions{PollInterval: time.Second})
		for event := range events {
			if event.Error != nil {
				return event.Error
			}
			if event.Resource != nil {
				show(ssautils.FmtObjMetadata(event.Resource.Identifier), event.Resource.Status.String(), event.Resource.Message)
				if seen++; seen == len(objects) {
					return nil
				}
			}
		}
		return nil
	}
	return ssa.NewResourceManager(kube, poller, owner), status, nil
}

func show(subject, result, message string) {
	line, _ := json.Marshal(map[string]string{"object": subject, "result": result, "message": message})
	fmt.Println(string(line))
}
