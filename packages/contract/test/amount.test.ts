import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import * as fc from 'fast-check';
import { formatAmount, formatDecimal, parseAmount, parseDecimal } from '../src/index.ts';

const NANO = 1_000_000_000n;

describe('amounts', () => {
  it('are formatted as they were parsed, for every size and sign', () => {
    fc.assert(
      fc.property(fc.bigInt({ min: -(2n ** 63n), max: 2n ** 63n - 1n }), (nano) => {
        assert.equal(parseAmount(formatAmount(nano)), nano);
      }),
    );
  });

  it('add up as integers do, where floating point would not', () => {
    assert.equal(formatAmount((parseAmount('0.1') ?? 0n) + (parseAmount('0.2') ?? 0n)), '0.3');
    fc.assert(
      fc.property(
        fc.bigInt({ min: -(10n ** 17n), max: 10n ** 17n }),
        fc.bigInt({ min: -(10n ** 17n), max: 10n ** 17n }),
        (a, b) => {
          const sum = (parseAmount(formatAmount(a)) ?? 0n) + (parseAmount(formatAmount(b)) ?? 0n);
          assert.equal(formatAmount(sum), formatAmount(a + b));
        },
      ),
    );
  });

  it('are formatted as the shortest decimal string', () => {
    for (const [nano, text] of [
      [0n, '0'],
      [NANO, '1'],
      [-NANO / 2n, '-0.5'],
      [1n, '0.000000001'],
      [-1n, '-0.000000001'],
      [12n * NANO + 340_000_000n, '12.34'],
    ] as const)
      assert.equal(formatAmount(nano), text);
  });

  it('order as their numbers do', () => {
    fc.assert(
      fc.property(
        fc.bigInt({ min: 0n, max: 10n ** 18n }),
        fc.bigInt({ min: 0n, max: 10n ** 18n }),
        (a, b) => {
          const [x, y] = [formatDecimal(a, 12), formatDecimal(b, 12)].map(
            (text) => parseDecimal(text, 12) ?? 0n,
          );
          assert.equal((x ?? 0n) < (y ?? 0n), a < b);
        },
      ),
    );
  });

  it('refuse text that is no decimal, has too many decimals or is too long', () => {
    for (const text of [
      '',
      ' 1',
      '1 ',
      '.5',
      '1.',
      '1e3',
      '0x10',
      'NaN',
      'Infinity',
      '--1',
      '1,5',
      '٣',
      '0.0000000001',
      '1'.repeat(19),
    ])
      assert.equal(parseAmount(text), null, text);
    assert.equal(parseAmount('1.000000000000'), NANO, 'zeros at the end are no digits');
    assert.equal(parseAmount('+1'), NANO);
  });
});
