import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { architectureOf } from '@releap/contract/architecture';
import { describeCpu } from '../src/vmm/host-cpu.ts';
import { DEVICE_MODEL } from '../src/vmm/qemu/device-model.ts';
import { qemuDriver } from '../src/vmm/qemu/driver.ts';
import { vmmCommand } from '../src/vmm/qemu/vmm-store.ts';

const AMD64 = `processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 106
model name\t: Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz
stepping\t: 6
microcode\t: 0xd0003a5
flags\t\t: fpu vme constant_tsc nonstop_tsc
bogomips\t: 5800.00
`;
/** Of a Graviton 3. */
const ARM64 = `processor\t: 0
BogoMIPS\t: 2100.00
Features\t: fp asimd evtstrm aes sve
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x1
CPU part\t: 0xd40
CPU revision\t: 1
`;
const MIDR = '0x00000000411fd401';

describe('the identity of a processor', () => {
  it('of amd64 is its model, and under KVM its flags and microcode', () => {
    assert.deepEqual(describeCpu('amd64', { cpuinfo: AMD64 }), {
      hostCpu: 'Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz/6/106/6',
      details: ['fpu vme constant_tsc nonstop_tsc', '0xd0003a5'],
      tscKhz: 2_900_000,
    });
  });

  it('of arm64 is in a register, and under KVM its features and revision', () => {
    const cpu = describeCpu('arm64', { cpuinfo: ARM64, midr: MIDR, revidr: '0x0' });
    assert.deepEqual(cpu, {
      hostCpu: `arm64/${MIDR}`,
      details: ['fp asimd evtstrm aes sve', '0x0'],
      tscKhz: undefined,
    });
    const other = describeCpu('arm64', { cpuinfo: ARM64, midr: '0x00000000410fd4f0' });
    assert.notEqual(other.hostCpu, cpu.hostCpu);
  });

  it('of arm64 without that register is what the kernel prints of it, and never nothing', () => {
    const { hostCpu } = describeCpu('arm64', { cpuinfo: ARM64 });
    assert.equal(hostCpu, 'arm64/0x41/0xd40/0x1/1');
    assert.throws(
      () => describeCpu('arm64', { cpuinfo: 'processor\t: 0\n' }),
      /midr_el1 nor \/proc\/cpuinfo/,
    );
  });
});

describe('an architecture', () => {
  it('has a loader and a VMM of its own', () => {
    const { program, args } = vmmCommand('/vmm', architectureOf('arm64'));
    assert.equal(program, '/vmm/lib/ld-linux-aarch64.so.1');
    assert.ok(args.includes('/vmm/bin/qemu-system-aarch64'), args.join(' '));
    assert.equal(vmmCommand('/vmm', architectureOf('x64')).program, '/vmm/lib/ld-linux-x86-64.so.2');
  });

  it('that sandboxes cannot run on is refused, with those that they can run on', () => {
    const vmm = { version: '10.0.2', folder: '/vmm' };
    const vmms = { newest: vmm, versions: [vmm.version], forState: () => vmm };
    assert.throws(
      () => qemuDriver(vmms, architectureOf('arm64')),
      /no device model for arm64: sandboxes run on amd64$/,
    );
    assert.equal(qemuDriver(vmms, architectureOf('x64')).isKnownDeviceModel(DEVICE_MODEL), true);
    assert.throws(() => architectureOf('riscv64'), /x64 and arm64, not on riscv64/);
  });
});
