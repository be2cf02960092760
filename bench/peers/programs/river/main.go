// River on pgx: the same roles as kit.py.
//
// Settings come from the environment (bench/peers/catalog.py): CONCURRENCY is MaxWorkers, CHUNK the jobs of one
// InsertManyFast, PARALLEL how many of those calls run at once, POOL the connections of the producer.
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"golang.org/x/sys/unix"
)

const (
	queue         = "bench"
	tasks         = 64 // that submit single jobs at once
	workerPool    = 16
	fetchCooldown = time.Millisecond // the least that River allows
	fetchPoll     = 10 * time.Millisecond
)

var body = strings.Repeat("x", 100)

// now is CLOCK_MONOTONIC in nanoseconds, which Python and Node read too. Go's own clock has another zero.
var now = func() func() int64 {
	var at unix.Timespec
	check(unix.ClockGettime(unix.CLOCK_MONOTONIC, &at))
	base, zero := time.Now(), at.Nano()
	return func() int64 { return zero + int64(time.Since(base)) }
}()

func seconds() float64 { return float64(now()) / 1e9 }

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func setting(name string) int {
	value, err := strconv.Atoi(os.Getenv(name))
	if err != nil {
		log.Fatalf("%s must be set to a number: %v", name, err)
	}
	return value
}

// Nothing is the job; a paced one carries the time of its submit as its body.
type Nothing struct {
	Body string `json:"body"`
}

func (Nothing) Kind() string { return "nothing" }

func (Nothing) InsertOpts() river.InsertOpts { return river.InsertOpts{Queue: queue} }

// tally counts the jobs that began, in a file that the measuring process reads at any time.
type tally struct {
	river.WorkerDefaults[Nothing]
	record *[3]int64 // handled, when the first began, when the last began
	lock   sync.Mutex
	waits  *os.File
}

func newTally(folder string) *tally {
	name := filepath.Join(folder, strconv.Itoa(os.Getpid()))
	file, err := os.OpenFile(name+".tally", os.O_RDWR|os.O_CREATE, 0o644)
	check(err)
	size := binary.Size([3]int64{})
	check(file.Truncate(int64(size)))
	seen, err := syscall.Mmap(int(file.Fd()), 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	check(err)
	waits, err := os.Create(name + ".waits")
	check(err)
	return &tally{record: (*[3]int64)(unsafe.Pointer(&seen[0])), waits: waits}
}

func (t *tally) Work(_ context.Context, job *river.Job[Nothing]) error {
	at := now()
	atomic.CompareAndSwapInt64(&t.record[1], 0, at)
	atomic.StoreInt64(&t.record[2], at)
	atomic.AddInt64(&t.record[0], 1)
	if job.Args.Body[0] != 'x' {
		sent, err := strconv.ParseInt(strings.TrimSpace(job.Args.Body), 10, 64)
		if err != nil {
			return err
		}
		t.lock.Lock()
		defer t.lock.Unlock()
		fmt.Fprintf(t.waits, "%d\n", at-sent)
	}
	return nil
}

func connect(ctx context.Context, url string, size int) *pgxpool.Pool {
	config, err := pgxpool.ParseConfig(url)
	check(err)
	config.MinConns, config.MaxConns = int32(min(size, 4)), int32(size)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	check(err)
	check(pool.Ping(ctx))
	return pool
}

func client(pool *pgxpool.Pool, config *river.Config) *river.Client[pgx.Tx] {
	config.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	// Of a producer too: it announces its inserts no more often than this.
	config.FetchCooldown, config.FetchPollInterval = fetchCooldown, fetchPoll
	made, err := river.NewClient(riverpgxv5.New(pool), config)
	check(err)
	return made
}

func prepare(ctx context.Context, url string) {
	migrator, err := rivermigrate.New(riverpgxv5.New(connect(ctx, url, 2)), nil)
	check(err)
	_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	check(err)
}

func work(ctx context.Context, url, folder string) {
	workers := river.NewWorkers()
	river.AddWorker(workers, newTally(folder))
	made := client(connect(ctx, url, workerPool), &river.Config{
		JobTimeout: -1, // no timer for each job
		Queues:     map[string]river.QueueConfig{queue: {MaxWorkers: setting("CONCURRENCY")}},
		Workers:    workers,
	})
	check(made.Start(ctx))
	<-made.Stopped()
}

// share hands out `count` jobs in portions of `size` to `parts` goroutines until the deadline; how many were sent.
func share(count, size, parts int, deadline float64, send func(int)) int {
	var group sync.WaitGroup
	var taken, sent atomic.Int64
	for range parts {
		group.Go(func() {
			for seconds() < deadline {
				first := int(taken.Add(int64(size))) - size
				if first >= count {
					return
				}
				portion := min(size, count-first)
				send(portion)
				sent.Add(int64(portion))
			}
		})
	}
	group.Wait()
	return int(sent.Load())
}

func produce(ctx context.Context, role, url string, count int, number float64) {
	made := client(connect(ctx, url, setting("POOL")), &river.Config{})
	push := func(text string) {
		_, err := made.Insert(ctx, Nothing{Body: text}, nil)
		check(err)
	}
	pushMany := func(size int) {
		many := make([]river.InsertManyParams, size)
		for index := range many {
			many[index].Args = Nothing{Body: body}
		}
		_, err := made.InsertManyFast(ctx, many)
		check(err)
	}
	fmt.Println("ready")
	_, err := bufio.NewReader(os.Stdin).ReadString('\n')
	check(err)
	started := seconds()
	sent := count
	switch role {
	case "bulk":
		sent = share(count, setting("CHUNK"), setting("PARALLEL"), started+number, pushMany)
	case "single":
		sent = share(count, 1, tasks, started+number, func(int) { push(body) })
	case "paced":
		for range count {
			push(fmt.Sprintf("%100d", now()))
			time.Sleep(time.Duration(number * float64(time.Second)))
		}
	default:
		log.Fatalf("there is no role %q", role)
	}
	check(json.NewEncoder(os.Stdout).Encode(map[string]any{"started": started, "ended": seconds(), "sent": sent}))
}

func main() {
	ctx := context.Background()
	role, url, folder := os.Args[1], os.Args[2], os.Args[3]
	switch role {
	case "prepare":
		prepare(ctx, url)
	case "work":
		work(ctx, url, folder)
	default:
		count, err := strconv.Atoi(os.Args[4])
		check(err)
		number, err := strconv.ParseFloat(os.Args[5], 64)
		check(err)
		produce(ctx, role, url, count, number)
	}
}
