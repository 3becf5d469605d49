import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { describe, it } from 'node:test';
import { propertyRuns } from '@releap/testing/repetitions';
import * as fc from 'fast-check';
import { Rewriter, rewrite, type Matcher } from '../src/intercept/rewriter.ts';
import { SandboxSecrets, type Encoding } from '../src/intercept/sandbox-secrets.ts';

const HOST = 'api.example.com';
const placeholder = (seed: string): string => `rlps_${seed.repeat(43).slice(0, 43)}`;
const sha256 = (text: string): string => createHash('sha256').update(text).digest('hex');
const secret = (value: string, token: string, domain = HOST) => ({
  value,
  allowed_domains: [domain],
  placeholders: [sha256(token)],
  placeholder: token,
});

/** What comes out when the text is fed in these pieces. */
function inPieces(matcher: Matcher, text: string, cuts: readonly number[]): string {
  const rewriter = new Rewriter(matcher);
  const data = Buffer.from(text);
  const out: Buffer[] = [];
  let at = 0;
  for (const cut of [...cuts].map((one) => one % (data.length + 1)).sort((a, b) => a - b)) {
    out.push(rewriter.push(data.subarray(at, cut)));
    at = cut;
  }
  out.push(rewriter.push(data.subarray(at)), rewriter.end());
  return Buffer.concat(out).toString();
}

const A = placeholder('a');
const B = placeholder('b7');
const OTHER = placeholder('x');
const secrets = new SandboxSecrets([
  secret('the-value-of-a', A),
  secret('value b', B),
  secret('elsewhere-value', OTHER, 'other.example'),
]);
const into = (encoding: Encoding, host = HOST): Matcher => secrets.matcher(host, encoding, () => undefined);

describe('placeholders', () => {
  it('are replaced alike however the data is split; near misses and those of other domains are left', () => {
    const part = fc.constantFrom(
      A,
      B,
      OTHER,
      A.slice(0, 20),
      'rlps_',
      'rl',
      'r',
      `rlps_${'-'.repeat(43)}`,
      placeholder('q'),
      ' ',
      'text',
      '\n',
    );
    fc.assert(
      fc.property(fc.array(part, { maxLength: 12 }), fc.array(fc.nat(), { maxLength: 8 }), (parts, cuts) => {
        const text = parts.join('');
        const whole = text.replaceAll(/rlps_[A-Za-z0-9]{43}/g, (found) =>
          found === A ? 'the-value-of-a' : found === B ? 'value b' : found,
        );
        // Where prefixes stand next to others, what follows decides; both ways must at least agree.
        if (!/rlps_[A-Za-z0-9]*rlps_|rl?rlps_/.test(text))
          assert.equal(inPieces(into('raw'), text, []), whole);
        assert.equal(inPieces(into('raw'), text, cuts), inPieces(into('raw'), text, []));
      }),
      { numRuns: propertyRuns(2_000) },
    );
  });

  it('hold back nothing that cannot become one', () => {
    const rewriter = new Rewriter(into('raw'));
    assert.equal(rewriter.push(Buffer.from('data: 1\n\n')).toString(), 'data: 1\n\n');
    assert.equal(rewriter.push(Buffer.from('for')).toString(), 'fo');
    assert.equal(rewriter.push(Buffer.from('m')).toString(), 'rm');
    assert.equal(rewriter.push(Buffer.from('rlps_ab')).toString(), '');
    assert.equal(rewriter.push(Buffer.from('-')).toString(), 'rlps_ab-');
  });

  it('are written as their place needs it', () => {
    const odd = new SandboxSecrets([secret('a"b/c d\n', A)]);
    const as = (encoding: Encoding): string =>
      rewrite(
        odd.matcher(HOST, encoding, () => undefined),
        Buffer.from(A),
      ).toString();
    assert.equal(as('raw'), 'a"b/c d\n');
    assert.equal(as('json'), String.raw`a\"b/c d\n`);
    assert.equal(as('url'), 'a%22b%2Fc%20d%0A');
    assert.equal(as('path'), 'a%22b/c%20d%0A');
  });

  it('belong to domains: exact names, and wildcards for what is below', () => {
    const wild = new SandboxSecrets([secret('w', A, '*.example.com')]);
    const at = (host: string): string =>
      rewrite(
        wild.matcher(host, 'raw', () => undefined),
        Buffer.from(A),
      ).toString();
    assert.equal(at('a.example.com'), 'w');
    assert.equal(at('a.b.example.com'), 'w');
    for (const host of ['example.com', 'aexample.com', 'a.example.com.evil.net']) assert.equal(at(host), A);
    assert.equal(wild.allows('x.example.com'), true);
    assert.equal(wild.allows('example.com'), false);
  });
});

describe('values in responses', () => {
  it('become placeholders however they are split', () => {
    const value = 'aabaabaac-value';
    const scrubbed = new SandboxSecrets([secret(value, A)]);
    const part = fc.constantFrom(value, value.slice(0, 7), 'aab', 'a', ' ', '-value');
    fc.assert(
      fc.property(fc.array(part, { maxLength: 10 }), fc.array(fc.nat(), { maxLength: 8 }), (parts, cuts) => {
        const text = parts.join('');
        assert.equal(inPieces(scrubbed.scrubber(HOST, false), text, cuts), text.replaceAll(value, A));
        const sized = inPieces(scrubbed.scrubber(HOST, true), text, cuts);
        assert.equal(sized.length, text.length);
        assert.ok(!sized.includes(value));
      }),
      { numRuns: propertyRuns(2_000) },
    );
  });

  it('also when they are escaped; not for hosts that never get them, and not when they are short', () => {
    const many = new SandboxSecrets([
      secret('line one\n"quoted"', A),
      secret('short', B),
      secret('of-another-host', OTHER, 'other.example'),
    ]);
    const scrub = (text: string): string => rewrite(many.scrubber(HOST, false), Buffer.from(text)).toString();
    assert.equal(scrub('line one\n"quoted"'), A);
    assert.equal(scrub(JSON.stringify({ echo: 'line one\n"quoted"' })), `{"echo":"${A}"}`);
    assert.equal(scrub(`?q=${encodeURIComponent('line one\n"quoted"')}`), `?q=${A}`);
    assert.equal(scrub('short of-another-host'), 'short of-another-host');
  });
});
