import { ARCHITECTURE } from '../../host/architecture.ts';
import type { VmmDriver, VmmVersions } from '../driver.ts';
import { bootUnderKvm } from './boot-under-kvm.ts';
import { cpuModel, deviceModel, isKnownDeviceModel, newestDeviceModel } from './device-model.ts';
import { kernelAppend } from './kernel-append.ts';
import { checkedCpu } from './named-cpu.ts';
import { QemuVm } from './vm.ts';

/**
 * @param vmms builds of QEMU; `VmmStore.open` finds those of a service
 * @throws Error for operators when sandboxes cannot run on this architecture
 */
export function qemuDriver(vmms: VmmVersions, architecture = ARCHITECTURE): VmmDriver {
  return {
    vmms,
    nameOf: (version) => `QEMU ${version}`,
    deviceModel: newestDeviceModel(architecture),
    isKnownDeviceModel: (version) => isKnownDeviceModel(version, architecture),
    machineType: (version) => deviceModel(version).machineType,
    cpuModel,
    kernelAppend,
    namedCpu: async (name, log) => await checkedCpu(vmms.newest, name, log),
    bootUnderKvm: async (options) => await bootUnderKvm(vmms.newest, options),
    start: async (options) => await QemuVm.start(options),
    adopt: async (options) => await QemuVm.adopt(options),
  };
}
