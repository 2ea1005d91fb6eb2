export class MethodTab { constructor() { this.host = document.createElement('div'); } refresh() {} close() {} }
