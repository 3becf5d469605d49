// A hundred pauses and fifty stops of one sandbox that works all the time, in a service of its own:
//   node test/soak/lifecycle-soak.ts [pauses] [stops]
// It ends with 1 as soon as a byte, a process, a connection or the right time is lost.
import { Service } from '@releap/testing/service';
import { soak } from './soak.ts';

const [pauses = 100, stops = 50] = process.argv.slice(2).map(Number);
const startedAt = performance.now();
await using service = await Service.start({ RELEAP_BUILTIN_IMAGES: 'debian' });
for (const name of ['SIGINT', 'SIGTERM'] as const) {
  process.once(name, () => void service[Symbol.asyncDispose]().finally(() => process.exit(1)));
}
const { ms, addresses, ...result } = await soak(service, {
  pauses,
  stops,
  onProgress: (line) => console.log(line),
});
console.log(
  JSON.stringify({
    pauses,
    stops,
    addresses: addresses.length,
    ...result,
    minutes: Math.round((performance.now() - startedAt) / 60_000),
  }),
);
for (const [verb, list] of Object.entries(ms)) {
  const at = (share: number): number | undefined => list[Math.ceil(list.length * share) - 1];
  console.log(`${verb}: p50 ${at(0.5)} ms, p95 ${at(0.95)} ms, most ${list.at(-1)} ms`);
}
