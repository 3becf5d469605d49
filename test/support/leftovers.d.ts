/**
 * Everything on this machine that the Releap service with this home has: processes, network namespaces,
 * interfaces, nftables tables, mounts, loop devices and cgroups. Kernel names carry a digest of the home.
 */
export declare function leftovers(home: string): Promise<string[]>;
/**
 * What a running service still has of one sandbox (by its bare UUID), logs left out; and what it has that belongs to
 * nobody: namespaces, interfaces and cgroups that no record of the service names. Empty once it is wholly gone.
 */
export declare function tracesOf(home: string, uuid: string): Promise<string[]>;
